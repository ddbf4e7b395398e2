"""The Gaussian process against brute force in float64, and its samplers on data whose best denoiser is known."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.distributions import Normal, kl_divergence

from stochseg.core import (
    GAUSSIAN_STEPS,
    BatchNoise,
    GaussianProcess,
    cosine,
    gaussian_step,
    gaussian_walk,
    linear,
    make_grid,
    normal_kl,
    standard_normal,
)
from stochseg.errors import UserError

T = 6
JUMPS = [(t, s) for t in range(1, T + 1) for s in range(t)]


@pytest.fixture(params=[cosine, linear])
def process(request) -> GaussianProcess:
    return GaussianProcess(request.param(T))


def rows(*values):
    return torch.tensor(values)


def maps(*values):
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


def noise(seed=0):
    return BatchNoise(torch.Generator().manual_seed(seed))


# --- the forward process ------------------------------------------------------------------------------------


def test_the_marginal_is_the_composition_of_single_steps(process):
    """Mean and variance of x_t carried through x_t = sqrt(alpha_t) x_{t-1} + sqrt(beta_t) eps, one step at a time."""
    mean, variance = 0.7, 0.0
    for t in range(1, T + 1):
        alpha, beta = process.schedule.alpha[t].item(), process.schedule.beta[t].item()
        mean, variance = math.sqrt(alpha) * mean, alpha * variance + beta
        zero, one = (process.q_sample(maps(0.7), rows(t), maps(e)).item() for e in (0.0, 1.0))
        assert zero == pytest.approx(mean, rel=1e-12)
        assert (one - zero) ** 2 == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("space", [(4,), (2, 2), (2, 1, 2)])
def test_x0_and_noise_are_recovered(process, space):
    x0, eps = torch.randn(2, T, 3, *space, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = torch.arange(1, T + 1)
    x_t = process.q_sample(x0, t, eps)
    torch.testing.assert_close(process.predict_x0(x_t, eps, t), x0, rtol=0, atol=1e-9)
    torch.testing.assert_close(process.predict_eps(x_t, x0, t), eps, rtol=0, atol=1e-9)


def test_void_pixels_are_the_prior_whatever_their_label(process):
    eps = torch.randn(1, 2, 4, 4)
    mask = torch.rand(1, 4, 4) < 0.5
    ones = torch.ones(1, 2, 4, 4)
    one, two = (process.q_sample(ones.where(mask[:, None], void), rows(2), eps, mask) for void in (-1.0, 7.0))
    assert torch.equal(one, two)
    void = ~mask[:, None].expand_as(eps)
    assert torch.equal(one[void], eps[void])
    assert not torch.equal(one[~void], eps[~void])


# --- the posterior --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "s"), [j for j in JUMPS if j[1] > 0])
def test_the_posterior_is_bayes_rule(process, t, s):
    """q(x_s | x0) q(x_t | x_s), multiplied and normalized on a fine line of x_s."""
    bar_t, bar_s = process.schedule.alpha_bar[[t, s]]
    x0, x_t = torch.tensor([0.8, -0.4], dtype=torch.float64)
    line = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    log_p = Normal(bar_s.sqrt() * x0, (1 - bar_s).sqrt()).log_prob(line)
    log_p += Normal((bar_t / bar_s).sqrt() * line, (1 - bar_t / bar_s).sqrt()).log_prob(x_t)
    p = log_p.softmax(0)
    mean, variance = process.posterior(x_t.view(1, 1, 1, 1), x0, rows(t), rows(s))
    assert mean.item() == pytest.approx((p * line).sum().item(), abs=1e-8)
    assert variance.item() == pytest.approx((p * (line - mean.item()) ** 2).sum().item(), rel=1e-6)


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_a_jump_is_its_single_steps(process, t, s):
    """For a known x0, the steps t -> t-1 -> ... -> s give the mean and variance of the single jump."""
    x0, x_t = maps(0.8), maps(-0.4)
    mean, variance = x_t, 0.0
    for i in range(t, s, -1):
        at_mean, added = process.posterior(mean, x0, rows(i), rows(i - 1))
        slope = process.posterior(mean + 1, x0, rows(i), rows(i - 1))[0] - at_mean
        mean, variance = at_mean, slope**2 * variance + added
    direct = process.posterior(x_t, x0, rows(t), rows(s))
    torch.testing.assert_close(mean, direct[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(variance, direct[1], rtol=1e-9, atol=1e-15)


def test_the_last_jump_is_x0(process):
    mean, variance = process.posterior(maps(3.0, 3.0), maps(0.8, 0.8), rows(1, T), rows(0, 0))
    torch.testing.assert_close(mean, maps(0.8, 0.8), rtol=0, atol=1e-12)
    assert (variance == 0).all()


@pytest.mark.parametrize(("t", "s"), [(2, 2), (1, 3), (T + 1, 0), (2, -1)])
def test_an_impossible_jump_raises(process, t, s):
    with pytest.raises(UserError, match=r"a jump needs 0 <= s < t <= 6"):
        process.posterior(maps(0.0), maps(0.0), rows(t), rows(s))


@pytest.mark.parametrize(("t", "s"), JUMPS)
def test_the_learned_variance_lies_between_the_two_bounds(process, t, s):
    bar = process.schedule.alpha_bar
    jump = 1 - bar[t] / bar[s]
    _, smallest = process.posterior(maps(0.0), maps(0.0), rows(max(t, 2)), rows(max(s, 1)))
    assert process.log_variance(maps(1.0), rows(t), rows(s)).item() == pytest.approx(jump.log().item())
    assert process.log_variance(maps(0.0), rows(t), rows(s)).item() == pytest.approx(smallest.log().item())
    half = process.log_variance(maps(0.5), rows(t), rows(s)).item()
    assert half == pytest.approx((jump.log() + smallest.log()).item() / 2)


def test_a_schedule_of_one_step_has_a_finite_learned_variance():
    assert math.isfinite(GaussianProcess(cosine(1)).log_variance(maps(0.5), rows(1), rows(0)).item())


def test_float32_agrees_with_float64():
    """The coefficients are computed in float64: at the paper's T only the rounding of the maps is lost."""
    process = GaussianProcess(cosine(250))
    t = torch.arange(2, 251)
    x_t, x0 = torch.randn(2, len(t), 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, single = (process.posterior(x_t.to(d), x0.to(d), t, t - 1) for d in (torch.float64, torch.float32))
    for a, b in zip(exact, single, strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(b.double(), a, rtol=1e-5, atol=1e-6)


def test_kl_of_normals():
    values = torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, p = Normal(values[0], (values[1] / 2).exp()), Normal(values[2], (values[3] / 2).exp())
    torch.testing.assert_close(normal_kl(*values), kl_divergence(q, p))


# --- normal numbers -------------------------------------------------------------------------------------------


def test_normal_numbers_are_normal():
    """Kolmogorov-Smirnov; false-alarm rate 1e-6."""
    x = standard_normal(noise(), (20_000,))
    assert x.dtype == torch.float32
    assert stats.kstest(x.numpy(), "norm").pvalue > 1e-6


def test_the_ends_of_the_uniforms_are_finite_and_opposite():
    class Ends:
        def uniform(self, shape):
            return torch.tensor([0.0, 1 - 2**-24])

    low, high = standard_normal(Ends(), (2,)).tolist()
    assert low == -high
    assert 5 < high < 6


# --- sampling -------------------------------------------------------------------------------------------------


def test_an_unknown_sampler_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown sampler 'euler'; known: ddim, ddpm"):
        gaussian_step("euler")


@pytest.mark.parametrize("name", sorted(GAUSSIAN_STEPS))
def test_with_x0_known_every_step_keeps_the_marginal(name):
    """From x_t ~ q(x_t | x0) to x_s ~ q(x_s | x0) in one long jump. Kolmogorov-Smirnov; false-alarm rate 1e-6."""
    process, x0 = GaussianProcess(cosine(50)), torch.full((8000, 1, 1, 1), 0.6)
    t, s = 40, 15
    x_t = process.q_sample(x0, torch.full((8000,), t), standard_normal(noise(1), x0.shape))
    x_s = gaussian_step(name)(process, x_t, x0, None, t, s, noise(2))
    bar = process.schedule.alpha_bar[s].item()
    assert stats.kstest(x_s.flatten().numpy(), stats.norm(0.6 * bar**0.5, (1 - bar) ** 0.5).cdf).pvalue > 1e-6


def test_a_learned_variance_is_used():
    process, x_t = GaussianProcess(cosine(50)), torch.zeros(8000, 1, 1, 1)
    v = torch.full_like(x_t, 0.7)
    x_s = gaussian_step("ddpm")(process, x_t, x_t, v, 40, 15, noise())
    expected = process.log_variance(v[:1], rows(40), rows(15)).exp().item()
    assert x_s.var().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", sorted(GAUSSIAN_STEPS))
@pytest.mark.parametrize("space", [(12,), (2, 3, 2)])
def test_maps_have_any_number_of_dimensions(name, space):
    """The same pixels in another shape, void ones included: the same result."""
    process, mask = GaussianProcess(cosine(10)), torch.arange(12) % 5 > 0

    def walk(*space):
        def denoise(x_t, t, previous):
            return torch.tanh(x_t), torch.full_like(x_t, 0.3)

        x0 = torch.linspace(-1, 1, 2 * 12).view(2, 1, *space)
        x_T = process.q_sample(
            x0, rows(10, 10), standard_normal(noise(1), x0.shape), mask.expand(2, 12).view(2, *space)
        )
        return gaussian_walk(denoise, x_T, (10, 7, 2, 1), process, gaussian_step(name), noise(2))

    assert torch.equal(walk(*space), walk(3, 4).view(2, 1, *space))


@pytest.mark.parametrize("name", sorted(GAUSSIAN_STEPS))
@pytest.mark.parametrize("learned", [False, True])
def test_no_device_is_read(name, learned):
    """Tensors on the meta device have no data: whatever reads one (item, bool, a copy to the CPU) raises."""
    process, seen = GaussianProcess(cosine(10)), []

    def denoise(x_t, t, previous):
        seen.append(t.device.type)
        return torch.empty_like(x_t), torch.empty_like(x_t) if learned else None

    meta = BatchNoise(device="meta")
    x_T = standard_normal(meta, (2, 1, 4, 4))
    out = gaussian_walk(denoise, x_T, tuple(range(10, 0, -1)), process, gaussian_step(name), meta)
    assert out.device.type == "meta"
    assert set(seen) == {"cpu"}


@pytest.mark.parametrize("name", sorted(GAUSSIAN_STEPS))
@pytest.mark.parametrize("grid", ["even", "trailing"])
def test_a_normal_distribution_is_reproduced(name, grid):
    """x0 ~ N(0.2, 0.3^2) has a linear best denoiser; a fine grid must return its mean and deviation."""
    process, mean, variance = GaussianProcess(cosine(200)), 0.2, 0.09

    def denoise(x_t, t, previous):
        bar = process.schedule.alpha_bar[t].float()[:, None, None, None]
        gain = bar.sqrt() * variance / (bar * variance + 1 - bar)
        return mean + gain * (x_t - bar.sqrt() * mean), None

    x_T = standard_normal(noise(1), (4000, 1, 1, 1))
    out = gaussian_walk(
        denoise, x_T, make_grid(grid, process.schedule, 200), process, gaussian_step(name), noise(2), bound=10.0
    )
    assert out.mean().item() == pytest.approx(mean, abs=0.02)
    assert out.std().item() == pytest.approx(variance**0.5, abs=0.02)


@pytest.mark.parametrize("name", sorted(GAUSSIAN_STEPS))
def test_two_points_are_reproduced_with_their_probabilities(name):
    """x0 = ±1 with P(+1) = 0.3: the best denoiser is a tanh. 4000 draws have a deviation of 0.007."""
    process = GaussianProcess(cosine(100))

    def denoise(x_t, t, previous):
        bar = process.schedule.alpha_bar[t].float()[:, None, None, None]
        return torch.tanh(bar.sqrt() / (1 - bar) * x_t + 0.5 * math.log(0.3 / 0.7)), None

    x_T = standard_normal(noise(1), (4000, 1, 1, 1))
    grid = make_grid("even", process.schedule, 100)
    out = gaussian_walk(denoise, x_T, grid, process, gaussian_step(name), noise(2))
    assert (out.abs() > 0.95).float().mean() > 0.99
    assert (out > 0).float().mean().item() == pytest.approx(0.3, abs=0.035)


@pytest.mark.parametrize(("ahead", "expected"), [(0.0, [7, 2]), (1.0, [4, 1]), (0.2, [6, 1]), (9.0, [1, 1])])
def test_jumps_go_ahead_of_the_time_that_the_network_is_told(ahead, expected):
    """From 10 to 7 and from 7 to 2, plus a multiple of these 3 and 5 steps, and at most to 1."""
    told, jumps = [], []

    def denoise(x_t, t, previous):
        told.append(t.tolist())
        return x_t, None

    def step(process, x_t, x0, v, t, s, noise):
        jumps.append((t, s))
        return x_t

    gaussian_walk(
        denoise, torch.zeros(1, 1, 1, 1), (10, 7, 2), GaussianProcess(cosine(10)), step, noise(1), ahead=ahead
    )
    assert told == [[10], [7], [2]]
    assert jumps == [(10, expected[0]), (7, expected[1])]


def test_the_walk_passes_on_the_clamped_estimate_and_reports_every_call():
    process, seen, calls = GaussianProcess(cosine(10)), [], []

    def denoise(x_t, t, previous):
        seen.append((t.tolist(), previous))
        return torch.full_like(x_t, 3.0), None

    x_T = torch.zeros(2, 1, 1, 1)
    step = gaussian_step("ddim")
    out = gaussian_walk(denoise, x_T, (10, 7, 2), process, step, noise(), lambda *call: calls.append(call[:2]))
    assert calls == [(0, 10), (1, 7), (2, 2)]
    assert [t for t, _ in seen] == [[10, 10], [7, 7], [2, 2]]
    assert seen[0][1] is None
    assert all((previous == 1).all() for _, previous in seen[1:])
    assert (out == 1).all()
