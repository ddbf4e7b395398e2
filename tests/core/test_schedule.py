"""The noise schedules against their formulas, written out with Python's own floats."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stochseg.core import SCHEDULES, CategoricalProcess, Schedule, cosine, cosine_released, linear, make_grid
from stochseg.errors import UserError


def cosine_by_hand(t: int, num_timesteps: int = 250, s: float = 0.008) -> float:
    """Nichol and Dhariwal 2021, Eq. 17."""

    def f(step: int) -> float:
        return math.cos((step / num_timesteps + s) / (1 + s) * math.pi / 2) ** 2

    return f(t) / f(0)


def test_cosine_follows_its_formula_up_to_the_last_step():
    table = cosine(250, s=0.008).alpha_bar
    assert table.dtype == torch.float64
    assert table[0] == 1.0
    np.testing.assert_allclose(table[:250], [cosine_by_hand(t) for t in range(250)], rtol=1e-12)


def test_the_cap_changes_only_the_last_step():
    capped, free = cosine(250).beta, cosine(250, max_beta=1 - 1e-9).beta
    assert torch.equal(capped[:250], free[:250])
    assert capped[250].item() == pytest.approx(0.999, abs=1e-12)
    assert free[250] > 0.9999


def test_alpha_bar_at_the_end_is_positive_and_tiny():
    end = cosine(250).alpha_bar[250].item()
    assert end == pytest.approx(cosine_by_hand(249) * 1e-3, rel=1e-9)


def test_linear_equals_ho_et_al_at_a_thousand_steps():
    np.testing.assert_allclose(linear(1000).beta[1:], np.linspace(1e-4, 0.02, 1000), rtol=0, atol=1e-12)


def test_linear_ends_equally_noisy_at_other_lengths():
    ends = [math.log(linear(steps).alpha_bar[-1].item()) for steps in (250, 1000, 4000)]
    assert max(ends) - min(ends) < 0.05 * abs(ends[1])


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None, derandomize=True)
@given(num_timesteps=st.integers(1, 2000))
def test_every_schedule_is_the_product_of_its_alphas(name, num_timesteps):
    schedule = SCHEDULES[name](num_timesteps)
    assert schedule.num_timesteps == num_timesteps
    assert len(schedule.alpha) == len(schedule.beta) == num_timesteps + 1
    assert schedule.beta[0] == 0.0
    assert bool((schedule.alpha_bar > 0).all())
    np.testing.assert_allclose(np.cumprod(schedule.alpha.numpy()), schedule.alpha_bar, rtol=1e-12)


def released_table(T: int = 250) -> np.ndarray:
    """alpha_bar of the released code with alpha_bar_0 = 1: the cosine of step t - 1 at step t."""
    return np.array([1.0, *(math.cos(((t - 1) / T + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(1, T + 1))])


def test_released_cosine_is_one_step_late():
    np.testing.assert_allclose(cosine_released(250).alpha_bar, released_table(), rtol=0, atol=1e-15)
    assert abs(cosine_released(250).alpha_bar - cosine(250).alpha_bar).max().item() == pytest.approx(6.2e-3, abs=5e-5)


def drawn_probability(schedule: Schedule, evaluations: int, p: float) -> float:
    """Probability of a rare label after sampling one pixel, with the best denoiser for data of the released table.

    The distribution of x_t is carried through every jump, without drawing.
    """
    process, prior = CategoricalProcess(schedule, 2), torch.tensor([1 - p, p], dtype=torch.float64)
    grid = make_grid("even", schedule, evaluations)
    x_t, reached = torch.arange(2)[:, None], torch.full((2,), 0.5, dtype=torch.float64)
    for t, s in itertools.pairwise([*grid, 0]):
        keep = released_table()[t]
        joint = ((1 - keep) / 2 + keep * torch.eye(2, dtype=torch.float64)) * prior  # x_t, x0
        log_p0 = (joint / joint.sum(1, keepdim=True)).log()[:, :, None]
        jump = process.posterior(x_t, log_p0, torch.full((2,), t), torch.full((2,), s)).exp()[:, :, 0]
        reached = reached @ jump
    return reached[1].item()


@pytest.mark.parametrize("evaluations", [25, 250])
def test_networks_of_the_released_code_keep_rare_labels_with_its_table_alone(evaluations):
    assert drawn_probability(cosine_released(250), evaluations, 0.001) == pytest.approx(0.001, rel=1e-4)
    assert drawn_probability(cosine(250), evaluations, 0.001) > 0.00113


def test_from_betas_multiplies():
    table = Schedule.from_betas(torch.tensor([0.5, 0.2], dtype=torch.float64)).alpha_bar
    np.testing.assert_allclose(table, [1.0, 0.5, 0.4], rtol=1e-15)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([0.99, 0.5], r"alpha_bar\[0\] must be exactly 1 .* got 0.99"),
        ([1.0, 0.5, 0.5], "must fall strictly"),
        ([1.0, 0.5, 0.6], "must fall strictly"),
        ([1.0, 0.5, -0.1], "stay >= 0"),
        ([1.0, 0.5, float("nan")], "must fall strictly"),
        ([1.0], r"at least 2 entries, got \(1,\)"),
        ([[1.0, 0.5]], r"one axis .* got \(1, 2\)"),
    ],
)
def test_a_bad_table_raises(table, message):
    with pytest.raises(UserError, match=message):
        Schedule(torch.tensor(table, dtype=torch.float64))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_timesteps", [0, -3])
def test_a_schedule_without_steps_raises(name, num_timesteps):
    with pytest.raises(UserError, match=rf"\(T\) must be at least 1, got {num_timesteps}"):
        SCHEDULES[name](num_timesteps)
