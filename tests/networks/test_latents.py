"""Gaussian latents against sampling, scipy and torch.distributions."""

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, Normal, kl_divergence

from stochseg.networks.latents import LOG_SIGMA_LIMIT, Gaussian, GaussianHead


def gaussian(seed, *shape):
    g = torch.Generator().manual_seed(seed)
    mean, log_sigma = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    return Gaussian(mean, 0.5 * log_sigma)


def as_torch(g):
    return Independent(Normal(g.mean, g.log_sigma.exp()), g.mean.ndim - 1)


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3, 2)])
def test_kl_agrees_with_sampling(shape):
    """E_q[log q - log p] over 4000 draws, within 5 standard errors."""
    q, p, draws = gaussian(0, *shape), gaussian(1, *shape), 4_000
    eps = torch.randn(draws, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    terms = torch.stack([q.log_prob(z) - p.log_prob(z) for z in (q.draw(x) for x in eps)])
    error = terms.std(0) / draws**0.5
    assert ((terms.mean(0) - q.kl(p)).abs() < 5 * error).all()


def test_kl_and_density_agree_with_torch():
    q, p = gaussian(3, 5, 2, 4, 4), gaussian(4, 5, 2, 4, 4)
    torch.testing.assert_close(q.kl(p), kl_divergence(as_torch(q), as_torch(p)))
    torch.testing.assert_close(q.log_prob(p.mean), as_torch(q).log_prob(p.mean))
    torch.testing.assert_close(q.kl(q), torch.zeros(5, dtype=torch.float64))


def test_draws_follow_the_distribution():
    eps = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    z = Gaussian(torch.tensor(1.5), torch.tensor(-0.7)).draw(eps)
    assert stats.kstest(z.numpy(), stats.norm(1.5, 2.718281828**-0.7).cdf).pvalue > 1e-3


def test_a_draw_is_differentiable_in_mean_and_sigma():
    mean, log_sigma = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    eps = torch.randn(3, 2, dtype=torch.float64)
    Gaussian(mean, log_sigma).draw(eps).sum().backward()
    torch.testing.assert_close(mean.grad, torch.ones(3, 2, dtype=torch.float64))
    torch.testing.assert_close(log_sigma.grad, (log_sigma.exp() * eps).detach())


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_log_sigma_is_limited_and_the_kl_is_finite(size):
    head = GaussianHead(1, 2)
    with torch.no_grad():
        head.conv.weight.fill_(1.0)
    wild, calm = head(torch.full((1, 1, 2, 2), size)), head(torch.zeros(1, 1, 2, 2))
    assert wild.log_sigma.abs().max() <= LOG_SIGMA_LIMIT
    assert torch.isfinite(wild.kl(calm)).all()
    assert torch.isfinite(calm.kl(wild)).all()
    assert (calm.log_sigma.abs() < 1).all(), "no limit near zero"


def test_head_splits_its_output_into_mean_and_sigma():
    head = GaussianHead(3, 2)
    x = torch.randn(2, 3, 4, 5)
    out, raw = head(x), head.conv(x)
    torch.testing.assert_close(out.mean, raw[:, :2])
    torch.testing.assert_close(out.log_sigma, 7 * torch.tanh(raw[:, 2:] / 7))
