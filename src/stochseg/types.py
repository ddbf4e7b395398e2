"""The words everybody shares: Example, Batch, Samples, DatasetInfo.

Letters of all shape patterns: b batch, n samples, k raters, m modes, l labels, c channels, h w space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from stochseg import notebook
from stochseg.config import Config
from stochseg.errors import UserError

# A palette that stays apart in print and for color-blind readers; label 0 is the background.
DEFAULT_PALETTE = ("#000000", "#e8853c", "#3c8fe8", "#4caf6e", "#c65bcf", "#e3c84b", "#5bcfc4", "#b0584a")


class Normalization(Config):
    """Raw intensities to network input, per channel: (raw - mean) / std. One value serves all channels."""

    mean: tuple[float, ...] = (127.5,)
    std: tuple[PositiveFloat, ...] = (127.5,)

    def __call__(self, raw: Tensor) -> Tensor:
        """raw: "... c h w", any dtype. Returns float32."""
        if len(self.mean) == len(self.std) == 1:  # no tensors to make: this runs once an example
            return (raw.float() - self.mean[0]) / self.std[0]
        mean = torch.tensor(self.mean, device=raw.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=raw.device).view(-1, 1, 1)
        return (raw.float() - mean) / std

    def inverse(self, image: Tensor) -> Tensor:
        """Network input back to raw intensities."""
        mean = torch.tensor(self.mean, device=image.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=image.device).view(-1, 1, 1)
        return image * std + mean


class DatasetInfo(Config):
    """What a model must know of its data: it travels with the weights."""

    name: str = "unnamed"
    num_classes: int = Field(ge=2)
    image_channels: int = Field(ge=1)
    class_names: tuple[str, ...] = ()
    palette: tuple[str, ...] = ()
    ignore: int | None = Field(None, ge=0, le=65535)
    normalization: Normalization = Normalization()
    renamed_keys: ClassVar = {"normalisation": "normalization"}
    size: tuple[int, int] | None = Field(None, description="(height, width) every image was brought to; None: as it is")

    @model_validator(mode="after")
    def _lengths(self) -> DatasetInfo:
        for key in ("class_names", "palette"):
            got = len(getattr(self, key))
            if got not in (0, self.num_classes):
                raise ValueError(f"{key} has {got} entries, expected {self.num_classes}, one a class")
        for key in ("mean", "std"):
            got = len(getattr(self.normalization, key))
            if got not in (1, self.image_channels):
                raise ValueError(f"normalization.{key} has {got} entries, expected {self.image_channels} or 1")
        if self.ignore is not None and 0 <= self.ignore < self.num_classes:
            raise ValueError(f"ignore {self.ignore} is one of the {self.num_classes} classes")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return self.class_names or tuple(f"class {i}" for i in range(self.num_classes))

    @property
    def colors(self) -> tuple[str, ...]:
        """One color a class, "#rrggbb"."""
        if self.palette:
            return self.palette
        return tuple(DEFAULT_PALETTE[i % len(DEFAULT_PALETTE)] for i in range(self.num_classes))


@dataclass(frozen=True)
class Example:
    """One image with the label maps of its raters.

    image: "c h w" float32, normalized; raters: "k h w" int64, their label maps, k >= 1 and free to differ between
    images; group: what must not be split between train and test (the patient); spacing: millimeters a pixel (h, w);
    rater_names: who drew each map, where that is known.
    """

    image: Tensor
    raters: Tensor
    id: str
    group: str = ""
    spacing: tuple[float, float] | None = None
    rater_names: tuple[str, ...] = ()

    def rated(self, ignore: int | None) -> Example:
        """Without raters whose whole map is void: they say nothing. None may be left."""
        if ignore is None:
            return self
        said = (self.raters != ignore).flatten(1).any(1)
        names = tuple(name for name, keep in zip(self.rater_names, said.tolist(), strict=False) if keep)
        return replace(self, raters=self.raters[said], rater_names=names)


@dataclass(frozen=True)
class Truth:
    """A known conditional distribution over label maps: modes "m h w" int64, probabilities "m", names."""

    modes: Tensor
    probabilities: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Examples of one size, stacked.

    image: "b c h w"; raters: "b k h w", k the most raters of one image; mask: same shape, False = void;
    rater_count: "b", how many of an image's label maps are its own (the rest is padding).
    """

    image: Tensor
    raters: Tensor
    mask: Tensor | None
    rater_count: Tensor
    ids: tuple[str, ...]

    @classmethod
    def collate(cls, examples: Sequence[Example], ignore: int | None = None) -> Batch:
        """Stack examples; those with fewer raters than the fullest are padded with empty maps."""
        sizes = {(tuple(e.image.shape[-2:]), tuple(e.raters.shape[-2:])) for e in examples}
        if len(sizes) != 1 or any(a != b for a, b in sizes):
            raise UserError(
                f"a batch must share one size, image and labels alike; got (image, labels) {sorted(sizes)}; "
                "resize or crop them in the data set, or use batch_size=1"
            )
        rater_count = torch.tensor([len(e.raters) for e in examples])
        raters = torch.nn.utils.rnn.pad_sequence([e.raters for e in examples], batch_first=True)
        mask = None
        if ignore is not None and bool((raters == ignore).any()):
            mask = raters != ignore
            raters = raters.masked_fill(~mask, 0)
        return cls(torch.stack([e.image for e in examples]), raters, mask, rater_count, tuple(e.id for e in examples))


@dataclass(frozen=True, repr=False)
class Samples:
    """Plausible label maps of a batch of images.

    labels: "b n h w" int64; mean: "b l h w", the average over samples of their final probabilities;
    weights: "b n", sum 1 an image (equal unless the method weights its samples);
    evaluations: network evaluations a sample took.
    """

    labels: Tensor
    mean: Tensor
    weights: Tensor
    seed: int
    evaluations: int = field(default=1)

    @property
    def num_classes(self) -> int:
        return self.mean.shape[1]

    @property
    def frequency(self) -> Tensor:
        """How often each label was drawn, "b l h w": the weighted share of samples."""
        b, n, h, w = self.labels.shape
        out = self.mean.new_zeros(b, self.num_classes, h, w)
        for i in range(n):
            out.scatter_add_(1, self.labels[:, i : i + 1], self.weights[:, i, None, None, None].expand(b, 1, h, w))
        return out

    @property
    def entropy(self) -> Tensor:
        """Entropy of `mean` in nats, "b h w": where the samples disagree."""
        return -torch.xlogy(self.mean, self.mean).sum(1)

    def fused(self, rule: Literal["mean", "vote"] = "mean") -> Tensor:
        """One label map "b h w": arg-max of the mean probabilities, or the (weighted) majority vote."""
        if rule not in ("mean", "vote"):
            raise UserError(f"fused: unknown rule {rule!r}; known: mean, vote")
        return (self.mean if rule == "mean" else self.frequency).argmax(1)

    def to(self, device: torch.device | str) -> Samples:
        return Samples(
            self.labels.to(device), self.mean.to(device), self.weights.to(device), self.seed, self.evaluations
        )

    def __repr__(self) -> str:
        b, n, h, w = self.labels.shape
        return (
            f"Samples({b} image{'s' * (b > 1)} of {h}×{w} pixels, {n} label map{'s' * (n > 1)} each, "
            f"{self.num_classes} classes, seed {self.seed}, evaluations {self.evaluations})"
        )

    def _repr_html_(self) -> str | None:
        return notebook.html(self)


def central(length: int, side: int | None) -> slice:
    """The middle `side` of `length` pixels; all of them if there are fewer, or for None."""
    side = length if side is None else min(length, side)
    return slice((length - side) // 2, (length - side) // 2 + side)
