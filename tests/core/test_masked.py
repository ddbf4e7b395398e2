"""Masked diffusion against enumeration, to 1e-12 in float64: forward process, posterior, bound and samplers.

The reference multiplies the one-step transition matrices over the L labels and the state "masked", and applies Bayes'
rule by summation; it shares no formula with the code.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from stochseg.core import (
    MASKED_SAMPLERS,
    SAMPLERS,
    CategoricalProcess,
    MaskedProcess,
    SeededNoise,
    cosine,
    kl_terms,
    prior_kl,
    straight,
)
from stochseg.errors import UserError

L, T = 3, 6
HIDDEN = L
JUMPS = [(t, s) for t in range(1, T + 1) for s in range(t)]
SCHEDULES = {"straight": straight(T), "cosine": cosine(T)}


@pytest.fixture(params=SCHEDULES)
def process(request) -> MaskedProcess:
    return MaskedProcess(SCHEDULES[request.param], L)


def jump(process: MaskedProcess, s: int, t: int) -> np.ndarray:
    """q(x_t | x_s) by multiplying the steps between; the last state is "masked" and stays so."""
    out = np.eye(L + 1)
    for step in range(s + 1, t + 1):
        beta = process.schedule.beta[step].item()
        one = (1 - beta) * np.eye(L + 1)
        one[:, HIDDEN] += beta
        out = out @ one
    return out


def bayes(process: MaskedProcess, t: int, s: int) -> np.ndarray:
    """q(x_s = k | x_t = i, x0 = j) as [i, j, k], by summing the joint; NaN where x_t is impossible given x0."""
    joint = np.einsum("jk,ki->ijk", jump(process, 0, s)[:L], jump(process, s, t))
    with np.errstate(invalid="ignore"):
        return joint / joint.sum(-1, keepdims=True)


def posterior(process: MaskedProcess, p0: np.ndarray, x_t: int, t: int, s: int) -> np.ndarray:
    """p(x_s | x_t) for distributions "j l" of x0, as [j, k]; each is a pixel of one map."""
    states = torch.full((1, len(p0)), x_t)
    out = process.posterior(states, torch.from_numpy(p0).log().T[None], torch.tensor([t]), torch.tensor([s]))
    return out.exp()[0].T.numpy()


def random_p0(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(L, 0.5), size=count)


def test_forward_marginal_is_the_product_of_the_steps(process):
    for t in range(T + 1):
        got = process.q_marginal(torch.arange(L)[None], torch.tensor([t]), torch.float64).exp()[0].T.numpy()
        np.testing.assert_allclose(got, jump(process, 0, t)[:L], atol=1e-12, rtol=0)


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_posterior_is_bayes(process, t, s):
    """A masked x_t: the sum over x0 for any p0. A label: x0 is that label for certain."""
    exact, p0 = bayes(process, t, s), random_p0(5)
    got = posterior(process, p0, HIDDEN, t, s)
    np.testing.assert_allclose(got, p0 @ exact[HIDDEN], atol=1e-12, rtol=0)
    for label in range(L):
        # At T no label of a straight schedule is left, except one that a user knows.
        expected = exact[label, label] if jump(process, 0, t)[label, label] > 0 else np.eye(L + 1)[label]
        got = posterior(process, p0, label, t, s)
        np.testing.assert_allclose(got, np.tile(expected, (5, 1)), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_a_straight_schedule_keeps_a_pixel_masked_with_probability_s_over_t(t, s):
    got = posterior(MaskedProcess(straight(T), L), random_p0(1), HIDDEN, t, s)[0, HIDDEN]
    assert got == pytest.approx(s / t, abs=1e-12)


def test_reverse_jumps_compose(process):
    p0 = random_p0(4)
    for s, r, t in itertools.combinations(range(T + 1), 3):
        first = posterior(process, p0, HIDDEN, t, r)
        second = np.stack([posterior(process, p0, state, r, s) for state in range(L + 1)], axis=1)
        direct = posterior(process, p0, HIDDEN, t, s)
        np.testing.assert_allclose(np.einsum("jm,jmk->jk", first, second), direct, atol=1e-12, rtol=0)


def test_the_bound_is_the_cross_entropy_of_masked_pixels_over_t():
    """T KL( q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t) ) = -[x_t masked] log p0[x0] / (t/T), and against enumeration."""
    process = MaskedProcess(straight(T), L)
    p0 = random_p0(L)
    for t, x0 in itertools.product(range(1, T + 1), range(L)):
        x_t = torch.tensor([[HIDDEN, x0]])
        log_p0 = torch.from_numpy(p0[x0]).log()[None, :, None].expand(1, L, 2)
        masked, copied = kl_terms(process, log_p0, torch.full((1, 2), x0), x_t, torch.tensor([t]))[0].tolist()
        exact = bayes(process, t, t - 1)[HIDDEN]
        q, p = exact[x0], p0[x0] @ exact
        assert masked == pytest.approx(sum(q[k] * np.log(q[k] / p[k]) for k in range(L + 1) if q[k] > 0), abs=1e-12)
        assert T * masked == pytest.approx(-np.log(p0[x0, x0]) / (t / T), abs=1e-12)
        assert copied == 0


def test_the_gradient_of_the_bound_is_finite_where_pixels_are_copied():
    logits = torch.randn(1, L, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x0, x_t = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[HIDDEN, 1, HIDDEN, 0]])
    kl_terms(MaskedProcess(straight(T), L), logits.log_softmax(1), x0, x_t, torch.tensor([3])).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().sum(1)[0].gt(0).tolist() == [True, False, True, False]


def test_x_T_is_masked_everywhere_and_tells_nothing_of_x0():
    process = MaskedProcess(straight(T), L)
    noise = SeededNoise([(0,), (1,)])
    assert (process.prior((2, 3, 4), noise) == HIDDEN).all()
    x0 = torch.randint(L, (2, 50), generator=torch.Generator().manual_seed(0))
    assert (process.q_sample(x0, torch.tensor([T, T]), noise) == HIDDEN).all()
    assert torch.equal(process.q_sample(x0, torch.tensor([0, 0]), noise), x0)
    assert prior_kl(process, x0).abs().max() == 0


def test_void_pixels_are_masked_and_have_no_term():
    process, x0 = MaskedProcess(straight(T), L), torch.full((1, 200), 255)
    mask = torch.arange(200)[None] >= 100
    x0[mask] = 1
    x_t = process.q_sample(x0, torch.tensor([3]), SeededNoise([(0,)]), mask)
    assert (x_t[~mask] == HIDDEN).all()
    assert set(x_t[mask].tolist()) == {1, HIDDEN}
    assert torch.equal(process.to_predict(x_t, mask), mask & (x_t == HIDDEN))


def test_a_broken_network_shows_in_copied_pixels():
    process = MaskedProcess(straight(T), L)
    assert process.log_p0(torch.full((1, L, 2), torch.nan), torch.tensor([[HIDDEN, 1]])).isnan().all()


def test_a_p0_of_other_labels_is_refused():
    with pytest.raises(UserError, match="log_p0"):
        MaskedProcess(straight(T), L).posterior(
            torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, L + 1, 2), torch.tensor([2]), torch.tensor([1])
        )


# ---------------------------------------------------------------------- samplers, on maps of two pixels and two labels

GRID = (4, 2)
CLASSES, PARTS = 2, 8


class AllUniforms:
    """Every combination of uniforms, one per row: all probabilities of the chain are multiples of 1 / PARTS, so that
    the frequency among the rows is the exact probability."""

    def __init__(self, draws: int):
        values = (torch.arange(PARTS, dtype=torch.float64) + 0.5) / PARTS
        self.rows = torch.cartesian_prod(*[values.float()] * (2 * draws))
        self.used = 0

    def uniform(self, shape):
        assert tuple(shape) == (len(self.rows), 2)
        self.used += 2
        return self.rows[:, self.used - 2 : self.used]


def network_p0(x_t: tuple[int, ...], pixel: int) -> np.ndarray:
    """An arbitrary network: its p0 of a pixel depends on the states of both pixels."""
    ones = (1 + 3 * x_t[0] + 5 * x_t[1] + pixel) % 4
    return np.array([4 - ones, ones]) / 4


def denoise(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    rows = [[network_p0(tuple(row), pixel) for pixel in range(2)] for row in x_t.tolist()]
    return torch.from_numpy(np.array(rows)).log().movedim(-1, 1)


def chain(known: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """P(x0) of a map by brute force: all paths of states, with stay probabilities s/t and p0 of the network."""
    found: dict[tuple[int, ...], float] = {known: 1.0}
    for t, s in itertools.pairwise((*GRID, 0)):
        after: dict[tuple[int, ...], float] = {}
        for (x_t, p), x_s in itertools.product(found.items(), itertools.product(range(CLASSES + 1), repeat=2)):
            for pixel in range(2):
                if x_t[pixel] != CLASSES:
                    p *= x_s[pixel] == x_t[pixel]
                elif x_s[pixel] == CLASSES:
                    p *= s / t
                else:
                    p *= (1 - s / t) * network_p0(x_t, pixel)[x_s[pixel]]
            after[x_s] = after.get(x_s, 0.0) + p
        found = {x: p for x, p in after.items() if p > 0}
    return found


@pytest.mark.parametrize("known", [(2, 2), (1, 2), (2, 0), (0, 1)])
@pytest.mark.parametrize("name", ["ancestral", "sticky"])
def test_samplers_draw_the_enumerated_distribution(name, known):
    """Pixels that are not masked in x_T, as those that a user knows, are copied, and the others drawn given them."""
    process, noise = MaskedProcess(straight(4), CLASSES), AllUniforms(draws=1 if name == "ancestral" else 2)
    x_T = torch.tensor(known).expand(len(noise.rows), 2).clone()
    out = SAMPLERS[name](denoise, x_T, GRID, process, noise)
    got: dict[tuple[int, ...], float] = {}
    for p0 in out.log_p0.exp().double().numpy():  # the last draw, whose distribution `walk` returns
        for x0 in itertools.product(range(CLASSES), repeat=2):
            got[x0] = got.get(x0, 0.0) + p0[x0[0], 0] * p0[x0[1], 1] / len(noise.rows)
    expected = chain(known)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-12)
    for x0 in itertools.product(range(CLASSES), repeat=2):
        assert got[x0] == pytest.approx(expected.get(x0, 0.0), abs=1e-12)


def test_independent_pixels_have_their_distribution_after_any_grid():
    """An ideal network of independent pixels: P(x0) is the data's at any number of calls, unlike with fewer steps of a
    chain that is only approximately right."""
    data = np.array([0.7, 0.299, 0.001])
    process = MaskedProcess(straight(T), L)
    for grid in ((6, 0), (6, 3, 0), (6, 5, 4, 3, 2, 1, 0)):
        p = np.eye(L + 1)[HIDDEN]
        for t, s in itertools.pairwise(grid):
            p = p @ np.stack([posterior(process, data[None], state, t, s)[0] for state in range(L + 1)])
        np.testing.assert_allclose(p, [*data, 0], atol=1e-12)


def test_polished_draws_no_rare_label_and_looks_at_every_pixel_again():
    """Label 1 has 1% everywhere until the last two calls, which see one half each and want it in the other."""
    process, noise, seen = MaskedProcess(straight(20), 2), SeededNoise([(0,)]), []

    def network(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append(x_t.clone())
        p1 = 0.01 if int(t[0]) > 8 else 0.9
        return torch.tensor([1 - p1, p1]).log().view(1, 2, 1, 1).expand(1, 2, 20, 20)

    out = MASKED_SAMPLERS["polished"](network, process.prior((1, 20, 20), noise), (20, 15, 8, 2), process, noise)
    assert (seen[0] == 2).all()
    assert not (seen[1] == 1).any()
    one, other = seen[2] == 2, seen[3] == 2
    assert torch.equal(one, ~other)
    assert 100 < int(one.sum()) < 300
    assert (out.labels == 1).all()


@pytest.mark.parametrize("name", [*SAMPLERS, *MASKED_SAMPLERS])
def test_every_sampler_takes_the_process(name):
    """Labels of x0 alone come out, and a network is never shown a state beyond "masked"."""
    process, noise = MaskedProcess(straight(20), L), SeededNoise([(0,), (1,)])

    def network(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert 0 <= x_t.min() <= x_t.max() <= HIDDEN
        return torch.randn(2, L, 5, 5, generator=torch.Generator().manual_seed(int(t[0])))

    out = {**SAMPLERS, **MASKED_SAMPLERS}[name](
        network, process.prior((2, 5, 5), noise), (20, 15, 8, 2), process, noise
    )
    assert 0 <= out.labels.min() <= out.labels.max() < L
    assert out.log_p0.shape == (2, L, 5, 5)


def test_the_uniform_process_asks_for_all_pixels():
    process, x_t = CategoricalProcess(cosine(T), L), torch.zeros(1, 2, dtype=torch.int64)
    assert process.to_predict(x_t, None) is None
    assert process.network_step(torch.tensor([3])).tolist() == [3]
