"""Models that know whose label map is whose: the raters of a data set as a mixture, from which samples draw a rater."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.core import draw_categorical
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import rater_number
from stochseg.models.sampling import Keys, SamplingOptions
from stochseg.types import DatasetInfo, Losses


class RaterMixture(nn.Module):
    """Probabilities of the named raters and, in the last place, of raters without a name, estimated from the label maps
    that training draws.

    Raters of whom training saw nothing have probability 0; before any training the named ones are equally probable.

    Args:
        named: number of raters that have a name.

    Example:
        >>> mixture = RaterMixture(2)
        >>> mixture.observe(torch.tensor([0, 1, 1, -1]))
        >>> mixture.probabilities
        tensor([0.2500, 0.5000, 0.2500])
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


def draw_raters(probabilities: Tensor, u: Tensor) -> Tensor:
    """Draw raters "m" of these probabilities by uniforms "m"."""
    log_p = probabilities.log()[None, :, None].expand(len(u), -1, 1)
    return draw_categorical(log_p, u[:, None])[:, 0]


class RaterSegmenter(StochasticSegmenter):
    """Base class: a subclass implements `loss_by_rater` and `drawing`.

    Raters are numbered by `info.rater_names`; the last place, also reached by -1, is that of all without a name.
    """

    def __init__(self, info: DatasetInfo, config: SegmenterConfig):
        super().__init__(info, config)
        self.mixture = RaterMixture(len(info.rater_names))

    @property
    def rater_names(self) -> tuple[str, ...]:
        """The raters of whom training saw label maps; before any training, all."""
        seen = self.mixture.probabilities.tolist()
        return tuple(name for name, share in zip(self.info.rater_names, seen, strict=False) if share > 0)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        """The loss of label maps of raters without a name."""
        return self.loss_by_rater(image, raters, mask, rater_count, keys, torch.full(raters.shape[:2], -1))

    def rater_probabilities(self, options: SamplingOptions) -> Tensor:
        """Probabilities of the raters of a sample: all of them, or the one that the options choose."""
        shares = self.mixture.probabilities
        if options.rater is None:
            return shares
        known = self.rater_names
        place = self.info.rater_names.index(known[rater_number(options.rater, known, self.name)])
        return F.one_hot(torch.tensor(place), len(shares)).to(shares)
