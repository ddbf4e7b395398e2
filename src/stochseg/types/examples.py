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
        rater_index: "b k" int64, the place of each map's rater in the data set's `rater_names`, -1 if unknown.
    """

    image: Tensor
    raters: Tensor
    mask: Tensor | None
    rater_count: Tensor
    ids: tuple[str, ...]
    rater_index: Tensor

    @classmethod
    def collate(cls, examples: Sequence[Example], ignore: int | None = None, rater_names: Sequence[str] = ()) -> Batch:
        """Stack examples of one size; label maps of value `ignore` become void.

        rater_names: those of the data set, which number the raters.
        """
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
        image, ids = torch.stack([e.image for e in examples]), tuple(e.id for e in examples)
        return cls(image, raters, mask, rater_count, ids, _rater_index(examples, rater_names, raters.shape[1]))


def _rater_index(examples: Sequence[Example], names: Sequence[str], k: int) -> Tensor:
    """Numbers "b k" of the raters of each example's maps, -1 where unknown and where an example has fewer maps."""
    places = {name: place for place, name in enumerate(names)}
    index = torch.full((len(examples), k), -1)
    for row, example in zip(index, examples, strict=True):
        if len(example.rater_names) == len(example.raters):
            row[: len(example.raters)] = torch.tensor([places.get(name, -1) for name in example.rater_names])
    return index
