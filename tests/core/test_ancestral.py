"""Exactness of ancestral sampling with fewer steps: a rare label keeps its probability at any number of calls.

Independent pixels carry label 1 with probability 0.001. The denoiser is ideal: p(x0 | x_t) by Bayes' rule. Then
every number below has a binomial distribution that is known exactly, and an exact binomial test asks whether the
sampler follows it. 18 tests at 5e-8 each: the suite raises a false alarm with probability below 1e-6; seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import binomtest

from stochseg.core import (
    CategoricalProcess,
    SamplerOutput,
    SeededNoise,
    cosine,
    draw_categorical,
    make_grid,
)
from stochseg.core.samplers import SAMPLERS, ancestral

RARE = 0.001
T = 250
FALSE_ALARM = 5e-8
PIXELS = (4, 250, 300)
PROCESS = CategoricalProcess(cosine(T), 2)

CASES = [(grid, steps) for grid in ("even", "trailing") for steps in (5, 10, 25)] + [("even", T)]


@dataclass(frozen=True)
class Ideal:
    """At step t: P(x_t = 1), and P(x0 = 1 | x_t) for x_t = 0 and 1."""

    p_x_t: float
    p_x0: tuple[float, float]


def ideal(t: int) -> Ideal:
    keep = PROCESS.schedule.alpha_bar[t].item()
    other, same = (1 - keep) / 2, (1 + keep) / 2
    p_x_t = RARE * same + (1 - RARE) * other
    return Ideal(p_x_t, (RARE * other / (1 - p_x_t), RARE * same / p_x_t))


LOGITS = torch.tensor([[[math.log1p(-p), math.log(p)] for p in ideal(t).p_x0] for t in range(1, T + 1)])


def denoise(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The ideal logits, "b 2 h w"."""
    by_label = LOGITS[int(t[0]) - 1].T
    return torch.stack([torch.where(x_t == 1, one, zero) for zero, one in by_label], dim=1)


def run(sampler, grid_name: str, steps: int) -> tuple[SamplerOutput, int]:
    """Draw samples; return them and the last step of the grid."""
    grid = make_grid(grid_name, PROCESS.schedule, steps)
    noise = SeededNoise((17, steps, i) for i in range(PIXELS[0]))
    return sampler(denoise, PROCESS.prior(PIXELS, noise), grid, PROCESS, noise), grid[-1]


def p_values(out: SamplerOutput, last: int) -> dict[str, float]:
    """Exact binomial p-values of (a) the mean final probability, (b) labels drawn from it, (c) arg-max labels."""
    pixels, exact = out.labels.numel(), ideal(last)
    low, high = exact.p_x0
    # The final probability of a pixel is `high` or `low`, as x_t is 1 or 0, so its mean is the number of ones.
    ones = (out.log_p0[:, 1].double().exp().mean().item() - low) / (high - low) * pixels
    assert ones == pytest.approx(round(ones), abs=0.2)
    u = SeededNoise((18, i) for i in range(len(out.labels))).uniform(out.labels.shape)
    drawn = draw_categorical(out.log_p0, u).sum().item()
    tests = {
        "mean": binomtest(round(ones), pixels, exact.p_x_t).pvalue,
        "drawn": binomtest(drawn, pixels, RARE).pvalue,
    }
    if high > 0.5:  # then the arg-max is x_t itself, with a known bias: P(x_t = 1) instead of 0.001
        tests["argmax"] = binomtest(out.labels.sum().item(), pixels, exact.p_x_t).pvalue
    return tests


def test_the_mean_of_the_final_probability_is_the_truth_by_construction():
    """Bayes' rule: E p(x0 = 1 | x_t) = 0.001, the premise of the p-value `mean`."""
    for t in range(1, T + 1):
        exact = ideal(t)
        low, high = exact.p_x0
        assert exact.p_x_t * high + (1 - exact.p_x_t) * low == pytest.approx(RARE, abs=1e-15)


@pytest.mark.parametrize(("grid", "steps"), CASES)
def test_a_rare_label_keeps_its_probability(grid, steps):
    out, last = run(ancestral, grid, steps)
    tests = p_values(out, last)
    assert ("argmax" in tests) == (grid == "even")
    assert min(tests.values()) > FALSE_ALARM, tests
    assert torch.equal(out.labels, out.log_p0.argmax(1))


@pytest.mark.parametrize(("grid", "steps"), [("even", 5), ("even", 10), ("trailing", 5), ("trailing", 10)])
def test_the_same_test_rejects_the_one_step_kernel(grid, steps):
    out, last = run(SAMPLERS["one-step-kernel"], grid, steps)
    assert max(p_values(out, last).values()) < 1e-100


def test_the_one_step_kernel_returns_a_third_instead_of_a_thousandth():
    """The expected result at 10 calls, computed by following P(x_t) through the chain."""
    x_t = torch.arange(2).reshape(2, 1, 1)
    p_x_t = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for t in make_grid("even", PROCESS.schedule, 10):
        t_b = torch.full((2,), t)
        log_p0 = torch.log_softmax(denoise(x_t, t_b).double(), 1)
        p_x_t = p_x_t @ PROCESS.posterior(x_t, log_p0, t_b, t_b - 1).exp().reshape(2, 2)
    assert p_x_t[1].item() == pytest.approx(0.3815, abs=1e-4)
