"""Gaussian diffusion over real-valued maps (Ho et al. 2020), for any jump of any time grid.

x_t = sqrt(alpha_bar_t) x0 + sqrt(1 - alpha_bar_t) eps, with the same `Schedule` as the categorical process; there
alpha_bar is the probability that a label survives, here the share of variance that the data keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_normal
from stochseg.core.schedule import Schedule
from stochseg.errors import UserError, unknown_name

GaussianDenoise = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(x_t "b c h w", t "b", the previous call's x0 or None) -> x0 "b c h w", and v "b c h w" where the network chooses
its variance: see `GaussianProcess.log_variance`."""

GaussianCallback = Callable[[int, int, Tensor, Tensor], None]
"""(call index, t, x_t, x0), after each network call."""


def standard_normal(noise: Noise, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers by the inverse CDF, float32 of this shape."""
    return draw_normal(noise.uniform(shape))


class GaussianProcess:
    """Forward process q and its exact posterior for any jump, for one schedule. Maps are "b c h w"; t, s are "b"."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    @property
    def num_steps(self) -> int:
        """T."""
        return self.schedule.num_steps

    # ------------------------------------------------------------------ forward

    def q_sample(self, x0: Tensor, t: Tensor, eps: Tensor, mask: Tensor | None = None) -> Tensor:
        """x_t for the standard normal `eps`. Where `mask` ("b h w", True = labelled) is False x0 is unknown: x_t is
        `eps` itself there, a draw from the prior, so that a network never reads a void label."""
        bar = self._bar(t)
        x_t = _like(bar.sqrt(), x0) * x0 + _like((1 - bar).sqrt(), x0) * eps
        return x_t if mask is None else torch.where(mask[:, None], x_t, eps)

    def predict_x0(self, x_t: Tensor, eps: Tensor, t: Tensor) -> Tensor:
        """The x0 that noise `eps` brought to x_t."""
        bar = self._bar(t)
        return _like(bar.rsqrt(), x_t) * x_t - _like((1 / bar - 1).sqrt(), x_t) * eps

    def predict_eps(self, x_t: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """The noise that brought x0 to x_t, t >= 1."""
        bar = self._bar(t)
        return (x_t - _like(bar.sqrt(), x_t) * x0) / _like((1 - bar).sqrt(), x_t)

    # ------------------------------------------------------------------ reverse

    def posterior(self, x_t: Tensor, x0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean "b c h w" and variance "b 1 1 1" of q(x_s | x_t, x0), for any jump 0 <= s < t <= T.

        With a = alpha_bar_t / alpha_bar_s (Ho et al. 2020, Eqs. 6 and 7, where s = t - 1):

            mean = ( sqrt(alpha_bar_s) (1 - a) x0 + sqrt(a) (1 - alpha_bar_s) x_t ) / (1 - alpha_bar_t)
            variance = (1 - a) (1 - alpha_bar_s) / (1 - alpha_bar_t)
        """
        bar_t, bar_s, step = self._jump(t, s)
        of_x0 = bar_s.sqrt() * step / (1 - bar_t)
        of_x_t = (1 - step).sqrt() * (1 - bar_s) / (1 - bar_t)
        mean = _like(of_x0, x_t) * x0 + _like(of_x_t, x_t) * x_t
        return mean, _like(step * (1 - bar_s) / (1 - bar_t), x_t)

    def log_variance(self, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """A learned log-variance of x_s given x_t (Nichol and Dhariwal 2021, Eq. 15), "b c h w": v = 1 is that of the
        forward jump, v = 0 that of the posterior, in between both are mixed. v: "b c h w".

        At s = 0 the posterior's is that of the jump to s = 1 (from at least t = 2): its own is zero, without logarithm.
        """
        _, _, step = self._jump(t, s)
        bar_t, bar_s, lower = self._jump(t.clamp(min=min(2, self.num_steps)), s.clamp(min=1), check=False)
        lower = (lower * (1 - bar_s) / (1 - bar_t)).clamp(min=1e-20)
        return v * _like(step.log(), v) + (1 - v) * _like(lower.log(), v)

    # ------------------------------------------------------------------ helpers

    def _bar(self, t: Tensor) -> Tensor:
        """alpha_bar at the steps t "b", float64 on the CPU."""
        return self.schedule.alpha_bar[t.cpu()]

    def _jump(self, t: Tensor, s: Tensor, check: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """alpha_bar_t, alpha_bar_s and the variance 1 - alpha_bar_t / alpha_bar_s that the jump from s to t adds."""
        if check and not bool(((s >= 0) & (s < t) & (t <= self.num_steps)).all()):
            raise UserError(f"a jump needs 0 <= s < t <= {self.num_steps}, got t={t.tolist()}, s={s.tolist()}")
        bar_t, bar_s = self._bar(t), self._bar(s)
        return bar_t, bar_s, 1 - bar_t / bar_s


def normal_kl(mean_q: Tensor, log_var_q: Tensor, mean_p: Tensor, log_var_p: Tensor) -> Tensor:
    """KL( N(mean_q, exp(log_var_q)) || N(mean_p, exp(log_var_p)) ), element by element, in nats."""
    difference = log_var_q - log_var_p
    return 0.5 * (difference.exp() - 1 - difference + (mean_q - mean_p) ** 2 * (-log_var_p).exp())


# ---------------------------------------------------------------------- sampling

Step = Callable[[GaussianProcess, Tensor, Tensor, Tensor | None, int, int, Noise], Tensor]
"""(process, x_t, x0, v, t, s, noise) -> x_s, for 0 < s < t."""


def ddpm_step(
    process: GaussianProcess, x_t: Tensor, x0: Tensor, v: Tensor | None, t: int, s: int, noise: Noise
) -> Tensor:
    """x_s ~ N(posterior mean, variance): the posterior's variance, or the learned one where there is a `v`."""
    steps, to = _rows(x_t, t), _rows(x_t, s)
    mean, variance = process.posterior(x_t, x0, steps, to)
    deviation = variance.sqrt() if v is None else (0.5 * process.log_variance(v, steps, to)).exp()
    return mean + deviation * standard_normal(noise, x_t.shape).to(x_t)


def ddim_step(
    process: GaussianProcess, x_t: Tensor, x0: Tensor, v: Tensor | None, t: int, s: int, noise: Noise
) -> Tensor:
    """x_s = sqrt(alpha_bar_s) x0 + sqrt(1 - alpha_bar_s) eps with the eps of x_t (Song et al. 2021, eta = 0)."""
    return process.q_sample(x0, _rows(x_t, s), process.predict_eps(x_t, x0, _rows(x_t, t)))


GAUSSIAN_STEPS: dict[str, Step] = {"ddpm": ddpm_step, "ddim": ddim_step}


def gaussian_step(name: str) -> Step:
    """The step of the sampler `name`."""
    if name not in GAUSSIAN_STEPS:
        raise unknown_name("sampler", name, GAUSSIAN_STEPS)
    return GAUSSIAN_STEPS[name]


def gaussian_walk(
    denoise: GaussianDenoise,
    x_T: Tensor,
    grid: Grid,
    process: GaussianProcess,
    step: Step,
    noise: Noise,
    callback: GaussianCallback | None = None,
    bound: float = 1.0,
) -> Tensor:
    """Call the network at every entry of the grid and step to the next; returns the last call's x0, "b c h w".

    x0 is cut to [-bound, bound] after every call, as the data are; the last jump, to t = 0, is x0 without noise.
    """
    x_t, x0 = x_T, None
    for i, (t, s) in enumerate(zip(grid, (*grid[1:], 0), strict=True)):
        x0, v = denoise(x_t, _rows(x_t, t), x0)
        x0 = x0.clamp(-bound, bound)
        if callback is not None:
            callback(i, t, x_t, x0)
        if s > 0:
            x_t = step(process, x_t, x0, v, t, s, noise)
    if x0 is None:
        raise UserError("a time grid has at least one step, got none")
    return x0


def _rows(x: Tensor, t: int) -> Tensor:
    return torch.full((len(x),), t)


def _like(value: Tensor, x: Tensor) -> Tensor:
    """A float64 scalar a row, "b", made ready to meet the map x "b c h w"."""
    return value.to(device=x.device, dtype=x.dtype)[:, None, None, None]
