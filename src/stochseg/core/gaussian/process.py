"""Gaussian diffusion over real-valued maps (Ho et al. 2020), for any jump of any time grid.

x_t = sqrt(alpha_bar_t) x0 + sqrt(1 - alpha_bar_t) eps, with the same `Schedule` as the categorical process; there
alpha_bar is the probability that a label survives, here the share of variance that the data keep.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core.noise import Noise, draw_normal
from stochseg.core.schedule import Schedule
from stochseg.errors import UserError


def standard_normal(noise: Noise, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers by the inverse CDF, float32 of this shape."""
    return draw_normal(noise.uniform(shape))


class GaussianProcess:
    """Forward process q and its exact posterior for any jump, for one schedule. Maps are "b c h w"; t, s are "b"."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    @property
    def num_timesteps(self) -> int:
        """T."""
        return self.schedule.num_timesteps

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
        bar_t, bar_s, lower = self._jump(t.clamp(min=min(2, self.num_timesteps)), s.clamp(min=1), check=False)
        lower = (lower * (1 - bar_s) / (1 - bar_t)).clamp(min=1e-20)
        return v * _like(step.log(), v) + (1 - v) * _like(lower.log(), v)

    # ------------------------------------------------------------------ helpers

    def _bar(self, t: Tensor) -> Tensor:
        """alpha_bar at the steps t "b", float64 on the CPU."""
        return self.schedule.alpha_bar[t.cpu()]

    def _jump(self, t: Tensor, s: Tensor, check: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """alpha_bar_t, alpha_bar_s and the variance 1 - alpha_bar_t / alpha_bar_s that the jump from s to t adds."""
        t, s = t.cpu(), s.cpu()
        if check and not bool(((s >= 0) & (s < t) & (t <= self.num_timesteps)).all()):
            raise UserError(f"a jump needs 0 <= s < t <= {self.num_timesteps}, got t={t.tolist()}, s={s.tolist()}")
        bar_t, bar_s = self._bar(t), self._bar(s)
        return bar_t, bar_s, 1 - bar_t / bar_s


def normal_kl(mean_q: Tensor, log_var_q: Tensor, mean_p: Tensor, log_var_p: Tensor) -> Tensor:
    """KL( N(mean_q, exp(log_var_q)) || N(mean_p, exp(log_var_p)) ), element by element, in nats."""
    difference = log_var_q - log_var_p
    return 0.5 * (difference.exp() - 1 - difference + (mean_q - mean_p) ** 2 * (-log_var_p).exp())


def _like(value: Tensor, x: Tensor) -> Tensor:
    """A float64 scalar a row, "b", made ready to meet the map x "b c h w"."""
    return value.to(device=x.device, dtype=x.dtype)[:, None, None, None]
