"""The categorical diffusion process over label maps (CCDM, Section 3.2).

All labels are integer maps "b h w"; all distributions are log-probabilities "b l h w". Scalars of the
schedule are float64 until they meet a tensor: naive float32 scalars cost five digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core.noise import Noise, draw_uniform_labels
from stochseg.core.schedule import Schedule
from stochseg.errors import UserError


class CategoricalProcess:
    """Forward process q and its exact posterior for any jump, for one schedule and L labels."""

    def __init__(self, schedule: Schedule, num_classes: int):
        if num_classes < 2:
            raise UserError(f"num_classes (L) must be at least 2, got {num_classes}")
        self.schedule = schedule
        self.num_classes = num_classes

    @property
    def num_timesteps(self) -> int:
        """T."""
        return self.schedule.num_timesteps

    # ------------------------------------------------------------------ forward, CCDM Eq. q_xt_given_x0

    def q_marginal(self, x0: Tensor, t: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """log q(x_t | x0), "b l h w". x0: "b h w"; t: "b" in 0..T."""
        alpha_bar = self._alpha_bar(t)
        log_other, log_same = (_per_pixel(p.log(), dtype, x0.device) for p in _mixture(alpha_bar, self.num_classes))
        out = log_other.expand(-1, self.num_classes, *x0.shape[1:]).clone()
        return out.scatter_(1, x0[:, None], log_same.expand(x0[:, None].shape))

    def q_sample(self, x0: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None) -> Tensor:
        """x_t ~ q(x_t | x0), "b h w". Where `mask` ("b h w", True = labelled) is False the label is unknown:
        x_t is drawn from the uniform distribution there, so that a network never reads a void label.
        """
        keep = noise.uniform(x0.shape).to(x0.device) < _per_pixel(self._alpha_bar(t), torch.float32, x0.device)[:, 0]
        if mask is not None:
            keep &= mask
        return torch.where(keep, x0, self.prior(x0.shape, noise).to(x0.device))

    def prior(self, shape: Sequence[int], noise: Noise) -> Tensor:
        """x_T ~ p(x_T), uniform over labels, "b h w"."""
        return draw_uniform_labels(noise.uniform(shape), self.num_classes)

    # ------------------------------------------------------------------ reverse, CCDM Eqs. q_params, p_params

    def posterior(self, x_t: Tensor, log_p0: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """log-probabilities of x_s given x_t when x0 ~ p0, "b l h w", for any jump 0 <= s < t <= T.

        sum over x0 of q(x_s | x_t, x0) p0[x0]: with one-hot p0 the pi of CCDM Eq. q_params, with the network's
        output the p-hat of Eq. p_params, for s = t - 1 or any other s. With a = alpha_bar_t / alpha_bar_s,

            A[k] = (1 - a)/L + a [k = x_t],   Z[j] = (1 - alpha_bar_t)/L + alpha_bar_t [j = x_t],
            p_s[k] = A[k] ( (1 - alpha_bar_s)/L  sum_j p0[j]/Z[j]  +  alpha_bar_s p0[k]/Z[k] )

        which is O(L) a pixel; the sum over x0 written out would be O(L^2).

        x_t: "b h w"; log_p0: "b l h w" normalized, -inf allowed; t, s: "b" integers, best on the CPU: from another
        device they are copied, which waits for it. Keeps log_p0's dtype.
        """
        t, s = t.cpu(), s.cpu()  # once: everything below computes with them on the CPU
        self._check_jump(x_t, log_p0, t, s)
        bar_t, bar_s = self._alpha_bar(t), self._alpha_bar(s)
        z_other, z_same = _mixture(bar_t, self.num_classes)
        a_other, a_same = _mixture(bar_t / bar_s, self.num_classes)
        noise, data = (1.0 - bar_s) / self.num_classes, bar_s

        def scalar(value: Tensor) -> Tensor:
            return _per_pixel(value, log_p0.dtype, log_p0.device)

        # In plain probabilities: sums of positive terms, which never cancel, and for s > 0 no label has less than the
        # noise gives it. In place, because here fresh memory costs more than arithmetic.
        at_x_t = x_t[:, None]
        p0 = log_p0.exp()
        p0_same = p0.gather(1, at_x_t)
        p = p0.clone() if p0.requires_grad else p0  # the backward pass reads p0
        p.scatter_(1, at_x_t, p0_same * scalar(z_other / z_same))  # p0[j] Z_other / Z[j]
        total = p.sum(1, keepdim=True) * scalar(noise / z_other)  # (1 - alpha_bar_s)/L  sum_j p0[j]/Z[j]
        p.mul_(scalar(a_other * data / z_other)).add_(total * scalar(a_other))
        p.scatter_(1, at_x_t, p0_same * scalar(a_same * data / z_same) + total * scalar(a_same))
        if bool((s > 0).all()):
            return p.log_()
        # x_0 itself is distributed as p0, whose logarithms may be too low for plain probabilities.
        at_zero = (s == 0).to(p.device)[:, None, None, None]
        return torch.where(at_zero, log_p0, p.masked_fill(at_zero, 1.0).log())

    def log_onehot(self, x0: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """log of the one-hot distribution at x0: 0 at the label, -inf elsewhere, "b l h w"."""
        out = torch.full((x0.shape[0], self.num_classes, *x0.shape[1:]), -torch.inf, dtype=dtype, device=x0.device)
        return out.scatter_(1, x0[:, None], 0.0)

    # ------------------------------------------------------------------ helpers

    def _alpha_bar(self, t: Tensor) -> Tensor:
        """alpha_bar at the steps t "b", float64 on the CPU."""
        return self.schedule.alpha_bar[t.cpu()]

    def _check_jump(self, x_t: Tensor, log_p0: Tensor, t: Tensor, s: Tensor) -> None:
        expected = (x_t.shape[0], self.num_classes, *x_t.shape[1:])
        if tuple(log_p0.shape) != expected:
            raise UserError(
                f'log_p0 "b l h w": expected {expected} for x_t of shape {tuple(x_t.shape)} and L={self.num_classes}, '
                f"got {tuple(log_p0.shape)}"
            )
        if not bool(((s >= 0) & (s < t) & (t <= self.num_timesteps)).all()):
            raise UserError(f"a jump needs 0 <= s < t <= {self.num_timesteps}, got t={t.tolist()}, s={s.tolist()}")


def _mixture(keep: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(1 - keep)/L and (1 - keep)/L + keep: the probabilities of another label and of the same. `keep` is "b"."""
    other = (1.0 - keep) / num_classes
    return other, other + keep


def _per_pixel(value: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A float64 scalar a row, "b", made ready to meet a "b l h w" tensor."""
    return value.to(device=device, dtype=dtype)[:, None, None, None]
