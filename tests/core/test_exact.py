"""The process against enumeration: L=3, T=6, one pixel, float64, every t and s, to 1e-12.

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


@pytest.fixture(params=SCHEDULES)
def process(request) -> CategoricalProcess:
    return CategoricalProcess(SCHEDULES[request.param], L)


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


def posterior(process: CategoricalProcess, x_t: int, p0: np.ndarray, t: int, s: int) -> np.ndarray:
    log_p0 = torch.from_numpy(p0).log().reshape(1, L, 1, 1)
    out = process.posterior(torch.tensor([[[x_t]]]), log_p0, steps(t, 1), steps(s, 1))
    return out.exp().reshape(L).numpy()


def test_forward_marginal_is_the_product_of_the_steps(process):
    labels = torch.arange(L).reshape(L, 1, 1)
    for t in range(T + 1):
        got = process.q_marginal(labels, steps(t, L), torch.float64).exp().reshape(L, L).numpy()
        np.testing.assert_allclose(got, jump(process, 0, t), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_posterior_of_a_known_x0_is_bayes(process, t, s):
    exact = bayes(process, t, s)
    for x_t, x0 in itertools.product(range(L), range(L)):
        got = posterior(process, x_t, np.eye(L)[x0], t, s)
        np.testing.assert_allclose(got, exact[x_t, x0], atol=1e-12, rtol=0)


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_reverse_is_the_sum_over_x0(process, t, s):
    exact = bayes(process, t, s)
    for x_t, p0 in itertools.product(range(L), random_p0(5)):
        np.testing.assert_allclose(posterior(process, x_t, p0, t, s), p0 @ exact[x_t], atol=1e-12, rtol=0)


def test_reverse_jumps_compose(process):
    """Chapman–Kolmogorov for a fixed x0: t -> r, then r -> s, is t -> s, for every t > r > s."""
    for s, r, t in itertools.combinations(range(T + 1), 3):
        for x_t, x0 in itertools.product(range(L), range(L)):
            first = posterior(process, x_t, np.eye(L)[x0], t, r)
            chained = sum(first[i] * posterior(process, i, np.eye(L)[x0], r, s) for i in range(L))
            direct = posterior(process, x_t, np.eye(L)[x0], t, s)
            np.testing.assert_allclose(chained, direct, atol=1e-12, rtol=0)


def test_ideal_denoiser_keeps_the_marginals_over_any_jumps(process):
    """With p0 = p(x0 | x_t), the chain over any grid reproduces q(x_s): sum over x_t of q(x_t) p(x_s | x_t)."""
    data = np.array([0.7, 0.299, 0.001])

    def marginal(t):
        return data @ jump(process, 0, t)

    def x0_given(t, x_t):
        joint = data * jump(process, 0, t)[:, x_t]
        return joint / joint.sum()

    for t, s in JUMPS:
        reverse = np.stack([posterior(process, x_t, x0_given(t, x_t), t, s) for x_t in range(L)])
        np.testing.assert_allclose(marginal(t) @ reverse, marginal(s), atol=1e-12, rtol=0)


def model_p0(t: int, x_t: int) -> np.ndarray:
    """An arbitrary denoiser: some distribution for each (t, x_t)."""
    return np.random.default_rng((t, x_t)).dirichlet(np.ones(L))


def test_kl_terms_are_the_divergences_of_the_enumerated_posteriors(process):
    for t, x_t, x0 in itertools.product(range(1, T + 1), range(L), range(L)):
        p0 = model_p0(t, x_t)
        log_p0 = torch.from_numpy(p0).log().reshape(1, L, 1, 1)
        got = kl_terms(process, log_p0, torch.tensor([[[x0]]]), torch.tensor([[[x_t]]]), steps(t, 1)).item()
        exact = bayes(process, t, t - 1)[x_t]
        q, p = exact[x0], p0 @ exact
        want = sum(q[k] * np.log(q[k] / p[k]) for k in range(L) if q[k] > 0)
        assert got == pytest.approx(want, abs=1e-12)
        if t == 1:
            assert got == pytest.approx(-np.log(p0[x0]), abs=1e-12)


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

    for x0 in range(L):
        label = torch.tensor([[[x0]]])
        bound = -prior_kl(process, label).item()
        for t, x_t in itertools.product(range(1, T + 1), range(L)):
            log_p0 = torch.from_numpy(model_p0(t, x_t)).log().reshape(1, L, 1, 1)
            term = kl_terms(process, log_p0, label, torch.tensor([[[x_t]]]), steps(t, 1)).item()
            bound -= jump(process, 0, t)[x0, x_t] * term
        likelihood = np.log(joint_p[x0].sum())
        q, p = joint_q[x0], joint_p[x0] / joint_p[x0].sum()
        gap = (q * np.log(q / p)).sum()
        assert bound < likelihood
        assert likelihood - bound == pytest.approx(gap, abs=1e-12)
