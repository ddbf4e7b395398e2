"""The categorical diffusion process over label maps (CCDM, Section 3.2), for maps of any number of dimensions.

Label maps are integers "b *space" (such as "b h w" or "b d h w"); distributions are log-probabilities "b l *space".
t and s are "b" integers, best on the CPU: copying them from another device waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core.noise import Noise, draw_uniform_labels
from stochseg.core.schedule import Schedule, per_row
from stochseg.errors import UserError


class CategoricalProcess:
    """Forward process q, and its exact posterior for any jump, for one schedule and L labels.

    Args:
        schedule: the noise schedule, such as `cosine(250)`.
        num_classes: L.

    Example:
        >>> from stochseg.core import SeededNoise, cosine
        >>> process = CategoricalProcess(cosine(250), num_classes=3)
        >>> x0 = torch.zeros(1, 4, 4, dtype=torch.int64)
        >>> x_t = process.q_sample(x0, torch.tensor([200]), SeededNoise([(0,)]))
        >>> process.posterior(x_t, process.log_onehot(x0), torch.tensor([200]), torch.tensor([100])).shape
        torch.Size([1, 3, 4, 4])
    """

    def __init__(self, schedule: Schedule, num_classes: int):
        if num_classes < 2:
            raise UserError(f"num_classes (L) must be at least 2, got {num_classes}")
        self.schedule = schedule
        self.num_classes = num_classes

    @property
    def num_timesteps(self) -> int:
        """T."""
        return self.schedule.num_timesteps

    @property
    def num_states(self) -> int:
        """Values that a pixel of x_t may have; here the L labels."""
        return self.num_classes

    # ------------------------------------------------------------------ forward: CCDM Eq. q_xt_given_x0 (5)

    def q_marginal(self, x0: Tensor, t: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute log q(x_t | x0) (CCDM Eq. q_xt_given_x0, the composition of t steps of Eq. q_xt_given_xt-1).

        Args:
            x0: "b *space" labels.
            t: "b" in 0..T.
            dtype: of the result.

        Returns:
            "b l *space" log-probabilities.
        """
        out = x0.new_empty((len(x0), self.num_classes, *x0.shape[1:]), dtype=dtype)
        log_other, log_same = (per_row(p.log(), out) for p in _mixture(self.schedule.at(t), self.num_classes))
        at_x0 = x0[:, None]
        return out.copy_(log_other.expand_as(out)).scatter_(1, at_x0, log_same.expand_as(at_x0))

    def q_sample(self, x0: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None) -> Tensor:
        """Draw x_t ~ q(x_t | x0) (CCDM Eq. q_xt_given_x0).

        Args:
            x0: "b *space" labels.
            t: "b" in 0..T.
            noise: source of the uniforms.
            mask: "b *space" bool, False = void. There x_t is drawn from the uniform distribution, so that a network
                never reads a void label.

        Returns:
            "b *space" int64.
        """
        u = noise.uniform(x0.shape).to(x0.device)
        keep = u < per_row(self.schedule.at(t), u)
        if mask is not None:
            keep &= mask
        return torch.where(keep, x0, self.prior(x0.shape, noise).to(x0.device))

    def prior(self, shape: Sequence[int], noise: Noise) -> Tensor:
        """Draw x_T ~ p(x_T), uniform over the labels, int64 of this shape."""
        return draw_uniform_labels(noise.uniform(shape), self.num_classes)

    def log_prior(self) -> Tensor:
        """The log-probabilities of the states of a pixel of x_T, float64."""
        return -torch.full((self.num_classes,), self.num_classes, dtype=torch.float64).log()

    # ------------------------------------------------------------------ reverse: CCDM Eq. p_params (12), q_params (7)

    def posterior(self, x_t: Tensor, log_p0: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Compute log p(x_s | x_t) when x0 ~ p0, for any jump 0 <= s < t <= T (CCDM Eq. p_params).

        The sum over x0 of q(x_s | x_t, x0) p0[x0]. With the network's output as p0 it is the p-hat of Eq. p_params,
        with a one-hot p0 the pi of Eq. q_params; the paper has s = t - 1. With a = alpha_bar_t / alpha_bar_s,

            A[k] = (1 - a)/L + a [k = x_t],   Z[j] = (1 - alpha_bar_t)/L + alpha_bar_t [j = x_t],
            p_s[k] = A[k] ( (1 - alpha_bar_s)/L  sum_j p0[j]/Z[j]  +  alpha_bar_s p0[k]/Z[k] )

        which costs O(L) per pixel; the sum over x0 written out costs O(L^2).

        Args:
            x_t: "b *space" labels.
            log_p0: "b l *space" normalized log-probabilities, -inf allowed.
            t: "b", the step of x_t.
            s: "b", the step to jump to.

        Returns:
            "b l *space" log-probabilities in the dtype of `log_p0`.

        Raises:
            UserError: if `log_p0` does not fit x_t or a jump is impossible.
        """
        t, s = self._checked_jump(x_t, log_p0, t, s)
        bar_t, bar_s = self.schedule.at(t), self.schedule.at(s)
        z_other, z_same = _mixture(bar_t, self.num_classes)
        a_other, a_same = _mixture(bar_t / bar_s, self.num_classes)
        noise, data = (1.0 - bar_s) / self.num_classes, bar_s

        def scalar(values: Tensor) -> Tensor:
            return per_row(values, log_p0)

        # In plain probabilities: sums of positive terms, which never cancel, and for s > 0 no label has less than the
        # noise gives it. In place, because here fresh memory costs more than arithmetic.
        at_x_t = x_t[:, None].long()
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
        at_zero = scalar(s == 0)
        return torch.where(at_zero, log_p0, p.masked_fill(at_zero, 1.0).log())

    def _checked_jump(self, x_t: Tensor, log_p0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """t and s on the CPU, or a UserError as of `posterior`."""
        t, s = t.cpu(), s.cpu()
        expected = (x_t.shape[0], self.num_classes, *x_t.shape[1:])
        if tuple(log_p0.shape) != expected:
            raise UserError(
                f'log_p0 "b l *space": expected {expected} for x_t of shape {tuple(x_t.shape)} and '
                f"L={self.num_classes}, got {tuple(log_p0.shape)}"
            )
        self.schedule.check_jump(t, s)
        return t, s

    # ------------------------------------------------------------------ what a network is asked

    def log_p0(self, logits: Tensor, x_t: Tensor) -> Tensor:
        """Normalize the network's logits "b l *space" of x0 at x_t "b *space"."""
        return torch.log_softmax(logits, dim=1)

    def network_step(self, t: Tensor) -> Tensor:
        """The number of the step that the network gets as input at step t "b"."""
        return t

    def to_predict(self, x_t: Tensor, mask: Tensor | None) -> Tensor | None:
        """The pixels with a term in the loss, "b *space" bool; None: all. mask: False = void."""
        return mask

    def log_onehot(self, x0: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the log of the one-hot distribution at x0 "b *space": 0 at the label, else -inf, "b l *space"."""
        out = torch.full((x0.shape[0], self.num_classes, *x0.shape[1:]), -torch.inf, dtype=dtype, device=x0.device)
        return out.scatter_(1, x0[:, None], 0.0)


def _mixture(keep: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(1 - keep)/L and (1 - keep)/L + keep: the probabilities of each other label and of the same. `keep` is "b"."""
    other = (1.0 - keep) / num_classes
    return other, other + keep
