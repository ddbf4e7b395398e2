"""Masked (absorbing) diffusion over label maps: a label is kept or lost, and a lost label is marked as such.

Sahoo et al. 2024 and Shi et al. 2024, "masked diffusion", for label maps. A map x_t has the labels 0..L-1 and the state
L, "masked".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core.noise import Noise
from stochseg.core.process import CategoricalProcess
from stochseg.core.schedule import per_row


class MaskedProcess(CategoricalProcess):
    """Forward process that masks a label instead of replacing it, and its exact posterior for any jump.

    The alpha_bar_t of the schedule is the probability that a pixel is not masked yet; masked diffusion has 1 - t/T
    (`straight`). Then T times the Kullback-Leibler terms of the bound (`kl_terms`) are the cross-entropy of the masked
    pixels divided by t/T, and a jump from t to s keeps a pixel masked with probability s/t.

    The labels of masked pixels given the others do not depend on t. Thus a network that is not told t (`network_step`)
    serves any set of masked pixels, such as all but those that a user has labeled.

    Args:
        schedule: the probabilities that a label is not masked, such as `straight(250)`.
        num_classes: L.

    Example:
        >>> from stochseg.core import SeededNoise, straight
        >>> process = MaskedProcess(straight(4), num_classes=2)
        >>> x_t, log_p0 = torch.tensor([[2, 1]]), torch.tensor([[[0.25, 0.5], [0.75, 0.5]]]).log()
        >>> process.posterior(x_t, log_p0, torch.tensor([4]), torch.tensor([2])).exp()
        tensor([[[0.1250, 0.0000],
                 [0.3750, 1.0000],
                 [0.5000, 0.0000]]])
    """

    @property
    def num_states(self) -> int:
        """L + 1: the labels, and masked."""
        return self.num_classes + 1

    def log_prior(self) -> Tensor:
        return torch.tensor([-torch.inf] * self.num_classes + [0.0], dtype=torch.float64)

    def q_marginal(self, x0: Tensor, t: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute log q(x_t | x0) "b l+1 *space"; arguments as for `CategoricalProcess.q_marginal`."""
        keep = self.schedule.at(t)
        out = self._copied(x0, dtype)
        out[:, -1:] = per_row((1 - keep).log(), out).expand_as(out[:, -1:])
        return out.scatter_(1, x0[:, None], per_row(keep.log(), out).expand_as(out[:, :1]))

    def q_sample(self, x0: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None) -> Tensor:
        """Draw x_t ~ q(x_t | x0); arguments as for `CategoricalProcess.q_sample`. Void pixels are masked."""
        u = noise.uniform(x0.shape).to(x0.device)
        keep = u < per_row(self.schedule.at(t), u)
        if mask is not None:
            keep &= mask
        return torch.where(keep, x0, self.num_classes)

    def prior(self, shape: Sequence[int], noise: Noise) -> Tensor:
        """Return x_T, masked everywhere; `noise` names the device."""
        return torch.full_like(noise.uniform(shape), self.num_classes, dtype=torch.int64)

    def posterior(self, x_t: Tensor, log_p0: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Compute log p(x_s | x_t) "b l+1 *space" when x0 ~ p0, for any jump 0 <= s < t <= T.

        A masked pixel stays so with probability (1 - alpha_bar_s) / (1 - alpha_bar_t), else it takes a label of p0; any
        other pixel keeps its label. Arguments as for `CategoricalProcess.posterior`.
        """
        t, s = self._checked_jump(x_t, log_p0, t, s)
        bar_t, bar_s = self.schedule.at(t), self.schedule.at(s)
        stays, leaves = ((part / (1 - bar_t)).log() for part in (1 - bar_s, bar_s - bar_t))
        masked = torch.cat([log_p0 + per_row(leaves, log_p0), torch.zeros_like(log_p0[:, :1])], 1)
        masked[:, -1:] += per_row(stays, log_p0)
        return torch.where(self._is_masked(x_t), masked, self._copied(x_t, log_p0.dtype))

    def log_p0(self, logits: Tensor, x_t: Tensor) -> Tensor:
        """Normalize the network's logits "b l *space" where x_t is masked; any other pixel has its label for certain.

        NaN stays NaN everywhere: a copied label must not hide that the network is broken.
        """
        log_p = torch.log_softmax(logits, dim=1)
        copied = self._copied(x_t, log_p.dtype)[:, :-1]
        return torch.where(self._is_masked(x_t) | log_p.isnan(), log_p, copied)

    def network_step(self, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def to_predict(self, x_t: Tensor, mask: Tensor | None) -> Tensor:
        masked = x_t == self.num_classes
        return masked if mask is None else masked & mask

    def _is_masked(self, x_t: Tensor) -> Tensor:
        return (x_t == self.num_classes)[:, None]

    def _copied(self, x_t: Tensor, dtype: torch.dtype) -> Tensor:
        """The log of the one-hot distribution at the states x_t "b *space", "b l+1 *space"."""
        out = torch.full((len(x_t), self.num_states, *x_t.shape[1:]), -torch.inf, dtype=dtype, device=x_t.device)
        return out.scatter_(1, x_t[:, None].long(), 0.0)
