"""Images with the label maps of their raters, one by one and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stochseg.errors import UserError

Losses = dict[str, Tensor]
"""The scalar "loss" of a batch and, for some models, its parts."""

Spacing = tuple[float, ...]
"""Millimeters per pixel, one number per spatial axis: (row, column), or (slice, row, column) of a volume."""


@dataclass(frozen=True)
class Example:
    """One image or volume with the label maps of its raters.

    Args:
        image: "c *space" float32, normalized.
        raters: "k *space" int64, one label map per rater; k >= 1 may differ between images.
        id: name of the image, unique in its data set.
        group: name of what must stay within one split, usually the patient.
        spacing: millimeters per pixel along each axis, if known.
        rater_names: one per label map, if known.
    """

    image: Tensor
    raters: Tensor
    id: str
    group: str = ""
    spacing: Spacing | None = None
    rater_names: tuple[str, ...] = ()

    def rated(self, ignore: int | None) -> Example:
        """The example without raters whose map is void everywhere; possibly no rater is left."""
        if ignore is None:
            return self
        labeled = (self.raters != ignore).flatten(1).any(1)
        names = tuple(name for name, keep in zip(self.rater_names, labeled.tolist(), strict=False) if keep)
        return replace(self, raters=self.raters[labeled], rater_names=names)


@dataclass(frozen=True)
class Truth:
    """A known distribution over the label maps of one image: modes "m *space" int64, probabilities "m", names."""

    modes: Tensor
    probabilities: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Examples of one size, stacked.

    Args:
        image: "b c *space" float32.
        raters: "b k *space" int64, k the largest number of raters of an image; images with fewer are padded.
        mask: same shape, False = void; None if nothing is void.
        rater_count: "b", number of raters of each image.
        ids: one per image.
    """

    image: Tensor
    raters: Tensor
    mask: Tensor | None
    rater_count: Tensor
    ids: tuple[str, ...]

    @classmethod
    def collate(cls, examples: Sequence[Example], ignore: int | None = None) -> Batch:
        """Stack examples of one size; label maps of value `ignore` become void."""
        sizes = {(tuple(e.image.shape[1:]), tuple(e.raters.shape[1:])) for e in examples}
        if len(sizes) != 1 or any(a != b for a, b in sizes):
            raise UserError(
                f"the images and label maps of a batch must share one size, got (image, labels) {sorted(sizes)}; "
                "resize or crop them in the data set, or use batch_size=1"
            )
        rater_count = torch.tensor([len(e.raters) for e in examples])
        raters = torch.nn.utils.rnn.pad_sequence([e.raters for e in examples], batch_first=True)
        mask = None
        if ignore is not None and bool((raters == ignore).any()):
            mask = raters != ignore
            raters = raters.masked_fill(~mask, 0)
        return cls(torch.stack([e.image for e in examples]), raters, mask, rater_count, tuple(e.id for e in examples))
