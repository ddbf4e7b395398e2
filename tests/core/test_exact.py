"""The process against enumeration: L=3, T=6, float64, every t and s, maps of 1, 2 and 3 dimensions, to 1e-12.

The reference multiplies the one-step transition matrices of CCDM Eq. q_xt_given_xt-1 and applies Bayes'
rule by summation; it shares no formula with the code.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from stochseg.core import CategoricalProcess, cosine, kl_terms, linear, prior_kl

L, T = 3, 6
JUMPS = [(t, s) for t in range(1, T + 1) for s in range(t)]
SCHEDULES = {"cosine": cosine(T), "linear": linear(T)}


dimensions = pytest.mark.parametrize("ndim", [1, 2, 3])


@pytest.fixture(params=SCHEDULES)
def process(request) -> CategoricalProcess:
    return CategoricalProcess(SCHEDULES[request.param], L)


def as_map(values: torch.Tensor, ndim: int) -> torch.Tensor:
    """Reshape the last axis, whose length is a multiple of 3, to `ndim` spatial axes."""
    count = values.shape[-1]
    return values.reshape(*values.shape[:-1], *{1: (count,), 2: (3, count // 3), 3: (3, count // 3, 1)}[ndim])


def one_step(process: CategoricalProcess, t: int) -> np.ndarray:
    """Q_t[i, j] = q(x_t = j | x_{t-1} = i)."""
    beta = process.schedule.beta[t].item()
    return beta / L * np.ones((L, L)) + (1 - beta) * np.eye(L)


def jump(process: CategoricalProcess, s: int, t: int) -> np.ndarray:
    """q(x_t | x_s) by multiplying the steps between."""
    out = np.eye(L)
    for step in range(s + 1, t + 1):
        out = out @ one_step(process, step)
    return out


def bayes(process: CategoricalProcess, t: int, s: int) -> np.ndarray:
    """q(x_s = k | x_t = i, x0 = j) as [i, j, k], by summing the joint."""
    to_s, to_t = jump(process, 0, s), jump(process, s, t)
    joint = np.einsum("jk,ki->ijk", to_s, to_t)
    return joint / joint.sum(-1, keepdims=True)


def steps(value: int, count: int) -> torch.Tensor:
    return torch.full((count,), value)


def random_p0(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(L, 0.5), size=count)


def posterior(process: CategoricalProcess, p0: np.ndarray, t: int, s: int, ndim: int = 1) -> np.ndarray:
    """p(x_s = k | x_t = i) for every i and every distribution "j l" of x0, as [i, j, k]: one map has all pairs."""
    x_t = torch.arange(L).repeat_interleave(len(p0))
    log_p0 = torch.from_numpy(p0).log().repeat(L, 1).T
    out = process.posterior(as_map(x_t[None], ndim), as_map(log_p0[None], ndim), steps(t, 1), steps(s, 1))
    return out.exp().reshape(L, L, len(p0)).movedim(0, -1).numpy()


@dimensions
def test_forward_marginal_is_the_product_of_the_steps(process, ndim):
    labels = as_map(torch.arange(L)[None], ndim)
    for t in range(T + 1):
        got = process.q_marginal(labels, steps(t, 1), torch.float64).exp().reshape(L, L).T.numpy()
        np.testing.assert_allclose(got, jump(process, 0, t), atol=1e-12, rtol=0)


@dimensions
@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_posterior_of_a_known_x0_is_bayes(process, t, s, ndim):
    """CCDM Eq. q_params."""
    np.testing.assert_allclose(posterior(process, np.eye(L), t, s, ndim), bayes(process, t, s), atol=1e-12, rtol=0)


@dimensions
@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_reverse_is_the_sum_over_x0(process, t, s, ndim):
    """CCDM Eq. p_params."""
    p0 = random_p0(5)
    expected = np.einsum("jx,ixk->ijk", p0, bayes(process, t, s))
    np.testing.assert_allclose(posterior(process, p0, t, s, ndim), expected, atol=1e-12, rtol=0)


def test_reverse_jumps_compose(process):
    """Chapman–Kolmogorov for a fixed x0: t -> r, then r -> s, is t -> s, for every t > r > s."""
    for s, r, t in itertools.combinations(range(T + 1), 3):
        first, second, direct = (posterior(process, np.eye(L), *pair) for pair in ((t, r), (r, s), (t, s)))
        np.testing.assert_allclose(np.einsum("ijm,mjk->ijk", first, second), direct, atol=1e-12, rtol=0)


def test_ideal_denoiser_keeps_the_marginals_over_any_jumps(process):
    """With p0 = p(x0 | x_t), the chain over any grid reproduces q(x_s): sum over x_t of q(x_t) p(x_s | x_t)."""
    data = np.array([0.7, 0.299, 0.001])

    def marginal(t):
        return data @ jump(process, 0, t)

    def x0_given(t, x_t):
        joint = data * jump(process, 0, t)[:, x_t]
        return joint / joint.sum()

    for t, s in JUMPS:
        p0 = np.stack([x0_given(t, x_t) for x_t in range(L)])
        reverse = posterior(process, p0, t, s)[range(L), range(L)]  # the p0 that belongs to each x_t
        np.testing.assert_allclose(marginal(t) @ reverse, marginal(s), atol=1e-12, rtol=0)


def model_p0(t: int, x_t: int) -> np.ndarray:
    """An arbitrary denoiser: some distribution for each (t, x_t)."""
    return np.random.default_rng((t, x_t)).dirichlet(np.ones(L))


def model_terms(process: CategoricalProcess, t: int, ndim: int = 1) -> np.ndarray:
    """The KL terms of `model_p0` for every x_t and x0, as [x_t, x0], from one map that has all pairs."""
    x_t, x0 = torch.cartesian_prod(torch.arange(L), torch.arange(L)).T
    log_p0 = torch.from_numpy(np.stack([model_p0(t, int(i)) for i in x_t], axis=1)).log()
    terms = kl_terms(process, *(as_map(values[None], ndim) for values in (log_p0, x0, x_t)), steps(t, 1))
    return terms.reshape(L, L).numpy()


@dimensions
def test_kl_terms_are_the_divergences_of_the_enumerated_posteriors(process, ndim):
    """CCDM Eq. kl_div."""
    for t in range(1, T + 1):
        got = model_terms(process, t, ndim)
        for x_t, x0 in itertools.product(range(L), range(L)):
            p0, exact = model_p0(t, x_t), bayes(process, t, t - 1)[x_t]
            q, p = exact[x0], p0 @ exact
            want = sum(q[k] * np.log(q[k] / p[k]) for k in range(L) if q[k] > 0)
            assert got[x_t, x0] == pytest.approx(want, abs=1e-12)
            if t == 1:
                assert got[x_t, x0] == pytest.approx(-np.log(p0[x0]), abs=1e-12)


def test_the_bound_is_below_the_likelihood(process):
    """E_q of the KL terms and the prior term bound log p(x0), which enumeration of the chain gives exactly.

    The gap is the divergence of the two posteriors over the latents, so it is also computed and must match.
    """
    reverse = {t: np.stack([model_p0(t, i) @ bayes(process, t, t - 1)[i] for i in range(L)]) for t in range(1, T + 1)}
    joint_p, joint_q = np.zeros([L] * (T + 1)), np.zeros([L] * (T + 1))
    for path in itertools.product(range(L), repeat=T + 1):  # path[t] = x_t
        p, q = 1 / L, 1.0
        for t in range(1, T + 1):
            p *= reverse[t][path[t], path[t - 1]]
            q *= one_step(process, t)[path[t - 1], path[t]]
        joint_p[path], joint_q[path] = p, q

    terms = {t: model_terms(process, t) for t in range(1, T + 1)}
    for x0 in range(L):
        bound = -prior_kl(process, torch.tensor([[[x0]]])).item()
        for t, x_t in itertools.product(range(1, T + 1), range(L)):
            bound -= jump(process, 0, t)[x0, x_t] * terms[t][x_t, x0]
        likelihood = np.log(joint_p[x0].sum())
        q, p = joint_q[x0], joint_p[x0] / joint_p[x0].sum()
        gap = (q * np.log(q / p)).sum()
        assert bound < likelihood
        assert likelihood - bound == pytest.approx(gap, abs=1e-12)
