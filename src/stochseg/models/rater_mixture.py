"""The raters of a data set as a mixture: who drew the label map of an image, and how often each rater did."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stochseg.core import draw_categorical


class RaterMixture(nn.Module):
    """Probabilities of the named raters and, in the last place, of raters without a name, estimated from the label maps
    that training draws.

    Raters of whom training saw nothing have probability 0; before any training the named ones are equally probable.

    Args:
        named: number of raters that have a name.

    Example:
        >>> mixture = RaterMixture(2)
        >>> mixture.observe(torch.tensor([0, 1, 1, 1, -1]))
        >>> mixture.probabilities.tolist()
        [0.20000000298023224, 0.6000000238418579, 0.20000000298023224]
    """

    counts: Tensor

    def __init__(self, named: int):
        super().__init__()
        self.register_buffer("counts", torch.zeros(named + 1, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def probabilities(self) -> Tensor:
        """One per rater, float32."""
        counts = self.counts.float()
        equal = torch.ones_like(counts)
        equal[len(counts) - 1 :] = float(len(counts) == 1)
        counts = torch.where(counts.sum() > 0, counts, equal)
        return counts / counts.sum()

    def observe(self, rater: Tensor) -> None:
        """Count the raters "m" of label maps; -1 has no name."""
        everyone = torch.arange(len(self.counts), device=self.counts.device)
        rater = rater.to(self.counts.device) % len(self.counts)
        self.counts += (rater[:, None] == everyone).sum(0)

    def draw(self, u: Tensor) -> Tensor:
        """Draw raters "m" by uniforms "m"."""
        log_p = self.probabilities.log()[None, :, None].expand(len(u), -1, 1)
        return draw_categorical(log_p, u[:, None])[:, 0]
