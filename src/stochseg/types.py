"""Types that all packages share: DatasetInfo, Example, Batch, Samples.

Letters in shape patterns: b batch, n samples, k raters, m modes, l labels, c channels, h w or *space for the spatial
axes.
"""

from __future__ import annotations

import colorsys
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from stochseg import notebook
from stochseg.config import Config
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.files import replaced_file
from stochseg.limits import MAX_CLASSES, check_memory

Losses = dict[str, Tensor]
"""The scalar "loss" of a batch and, for some models, its parts."""

Window = tuple[tuple[int, int], ...]
"""A part of an image: first pixel and last + 1 per axis."""

VOID = "void"
"""Name of a label that some models give to pixels of no class; it is never right."""

# Colors that can be told apart in print and by color-blind readers; label 0 is the background.
DEFAULT_PALETTE = ("#000000", "#e8853c", "#3c8fe8", "#4caf6e", "#c65bcf", "#e3c84b", "#5bcfc4", "#b0584a")


def distinct_colors(first: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` colors "#rrggbb": the first ones as given, then hues a golden angle apart.

    >>> distinct_colors(["#000000"], 3)
    ('#000000', '#e64949', '#4977e6')
    """
    hues = ((i * 0.618034) % 1 for i in range(max(0, count - len(first))))
    more = (colorsys.hsv_to_rgb(hue, 0.68, 0.9) for hue in hues)
    return (*first[:count], *("#" + "".join(f"{round(255 * part):02x}" for part in color) for color in more))


class Normalization(Config):
    """Convert raw intensities to network input: (raw - mean) / std per channel. One value serves all channels.

    >>> Normalization(mean=(100.0,), std=(50.0,))(torch.tensor([[[100, 200]]]))
    tensor([[[0., 2.]]])
    """

    mean: tuple[float, ...] = (127.5,)
    std: tuple[PositiveFloat, ...] = (127.5,)

    def __call__(self, raw: Tensor) -> Tensor:
        """Normalize "... c h w" of any dtype. Returns float32."""
        if len(self.mean) == len(self.std) == 1:  # without tensors, because this runs for every example
            return (raw.float() - self.mean[0]) / self.std[0]
        return (raw.float() - _per_channel(self.mean, raw)) / _per_channel(self.std, raw)

    def inverse(self, image: Tensor) -> Tensor:
        """Convert network input "... c h w" back to raw intensities."""
        return image * _per_channel(self.std, image) + _per_channel(self.mean, image)


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device).view(-1, 1, 1)


class Intensities(Config):
    """Raw intensities of some training images, one value per channel or one for all: what a model can be expected to
    segment.

    >>> Intensities(lowest=(0.0,), highest=(255.0,), darkest=(20.0,), span=(120.0,)).highest
    (255.0,)
    """

    lowest: tuple[float, ...] = Field(min_length=1, description="the lowest value of all images")
    highest: tuple[float, ...] = Field(min_length=1, description="the highest value of all images")
    darkest: tuple[float, ...] = Field(min_length=1, description="the highest of the images' lowest values")
    span: tuple[float, ...] = Field(
        min_length=1, description="the smallest difference of highest and lowest value of an image that is not constant"
    )


class DatasetInfo(Config):
    """Facts about a data set that a model needs; they are saved with the weights.

    >>> DatasetInfo(num_classes=2, image_channels=1, class_names=("background", "nodule")).names
    ('background', 'nodule')
    """

    name: str = "unnamed"
    num_classes: int = Field(ge=2, le=MAX_CLASSES, description="labels, the background included")
    image_channels: int = Field(ge=1, le=MAX_CLASSES)
    class_names: tuple[str, ...] = Field((), description="one per class, or none")
    palette: tuple[str, ...] = Field((), description='one "#rrggbb" per class, or none')
    ignore: int | None = Field(None, ge=0, le=65535, description="label of void pixels: neither learned nor scored")
    normalization: Normalization = Normalization()
    size: tuple[int, int] | None = Field(None, description="(height, width) that all images were resized to, if any")
    fit: tuple[int, int] | None = Field(
        None, description="(height, width) into which a model resizes and pads every image; samples are resized back"
    )
    intensities: Intensities | None = Field(None, description="of the training images, measured when training starts")
    orientation: Literal["free", "upright"] | None = Field(
        None, description="upright: photographs, in which up is up; free: quarter turns give images as plausible"
    )
    renamed_keys: ClassVar = {"normalisation": "normalization"}

    @model_validator(mode="after")
    def _lengths(self) -> DatasetInfo:
        for key in ("class_names", "palette"):
            got = len(getattr(self, key))
            if got not in (0, self.num_classes):
                raise ValueError(f"{key} has {got} entries, expected {self.num_classes}, one per class")
        for key in ("mean", "std"):
            got = len(getattr(self.normalization, key))
            if got not in (1, self.image_channels):
                raise ValueError(f"normalization.{key} has {got} entries, expected {self.image_channels} or 1")
        for key, values in () if self.intensities is None else self.intensities:
            if len(values) not in (1, self.image_channels):
                raise ValueError(f"intensities.{key} has {len(values)} entries, expected {self.image_channels} or 1")
        if self.ignore is not None and 0 <= self.ignore < self.num_classes:
            raise ValueError(f"ignore {self.ignore} is one of the {self.num_classes} classes")
        return self

    @model_serializer(mode="wrap")
    def _without_unknown_intensities(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out intensities that nobody measured: checksums over the facts of a data set stay as they were."""
        values: dict[str, Any] = dump(self)
        if values.get("intensities", ...) is None:
            del values["intensities"]
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """One name per class, "class 0", "class 1" ... if `class_names` is empty."""
        return self.class_names or tuple(f"class {i}" for i in range(self.num_classes))

    @property
    def colors(self) -> tuple[str, ...]:
        """One color per class, "#rrggbb"."""
        if self.palette:
            return self.palette
        return distinct_colors(DEFAULT_PALETTE, self.num_classes)


@dataclass(frozen=True)
class Example:
    """One image with the label maps of its raters.

    Args:
        image: "c h w" float32, normalized.
        raters: "k h w" int64, one label map per rater; k >= 1 may differ between images.
        id: name of the image, unique in its data set.
        group: name of what must stay within one split, usually the patient.
        spacing: millimeters per pixel, (row, column), if known.
        rater_names: one per label map, if known.
    """

    image: Tensor
    raters: Tensor
    id: str
    group: str = ""
    spacing: tuple[float, float] | None = None
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
    """A known distribution over the label maps of one image: modes "m h w" int64, probabilities "m", names."""

    modes: Tensor
    probabilities: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Examples of one size, stacked.

    Args:
        image: "b c h w" float32.
        raters: "b k h w" int64, k the largest number of raters of an image; images with fewer are padded.
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
        sizes = {(tuple(e.image.shape[-2:]), tuple(e.raters.shape[-2:])) for e in examples}
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


@dataclass(frozen=True, repr=False)
class Samples:
    """Plausible label maps of a batch of images.

    Args:
        labels: "b n *space" int64.
        mean: "b l *space", the average over samples of their final probabilities.
        weights: "b n", sum 1 per image; equal unless the method weights its samples.
        seed: the seed they were drawn with.
        evaluations: network evaluations per sample.
        info: class names, colors and normalization of the model's data, if known.
        window: first and last + 1 pixel per axis of the part of the image that the model labels; None: all of it.

    >>> labels = torch.tensor([[[[0, 1]], [[1, 1]]]])
    >>> samples = Samples(labels, torch.tensor([[[[0.5, 0.0]], [[0.5, 1.0]]]]), torch.full((1, 2), 0.5), seed=0)
    >>> samples.frequency[0, 1].tolist()
    [[0.5, 1.0]]
    >>> samples[0].fused("vote").tolist()
    [[[0, 1]]]
    """

    labels: Tensor
    mean: Tensor
    weights: Tensor
    seed: int
    evaluations: int = 1
    info: DatasetInfo | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        labels, mean, weights = self.labels, self.mean, self.weights
        if labels.dtype != torch.int64:
            raise UserError(f'labels "b n *space": expected torch.int64, got {labels.dtype}; convert with .long()')
        fits = labels.ndim >= 3 and mean.ndim == labels.ndim and mean.shape[0] == labels.shape[0]
        if not (fits and mean.shape[2:] == labels.shape[2:] and weights.shape == labels.shape[:2]):
            raise UserError(
                'Samples: expected labels "b n *space", mean "b l *space" and weights "b n", got shapes '
                f"{tuple(labels.shape)}, {tuple(mean.shape)} and {tuple(weights.shape)}"
            )
        if self.info is not None and self.info.num_classes != self.num_classes:
            raise UserError(f"Samples: info has {self.info.num_classes} classes, mean has {self.num_classes}")
        size = labels.shape[2:]
        if self.window is not None and not (
            len(self.window) == len(size)
            and all(0 <= start < stop <= end for (start, stop), end in zip(self.window, size, strict=True))
        ):
            raise UserError(f"Samples: expected a window (start, stop) per axis inside {size}, got {self.window}")

    @property
    def num_classes(self) -> int:
        """Number of labels, the background included."""
        return self.mean.shape[1]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, "class 0", "class 1" ... if they are unknown."""
        return self.info.names if self.info is not None else tuple(f"class {i}" for i in range(self.num_classes))

    @property
    def frequency(self) -> Tensor:
        """Weighted fraction of the samples with each label, "b l *space"."""
        out = torch.zeros_like(self.mean)
        spread = [1] * (self.labels.ndim - 1)
        for i in range(self.labels.shape[1]):
            drawn = self.labels[:, i : i + 1]
            out.scatter_add_(1, drawn, self.weights[:, i].view(-1, *spread).to(out).expand(drawn.shape))
        return out

    @property
    def entropy(self) -> Tensor:
        """Entropy of `mean` in nats, "b *space": where the samples disagree."""
        return -torch.xlogy(self.mean, self.mean).sum(1)

    @property
    def cut_off(self) -> Tensor:
        """Samples whose foreground reaches a border of `window` inside the image, "b n" bool: an object may go on there
        that the model does not label."""
        return reaches_border(self.labels != 0, self.window)

    def fused(self, rule: Literal["mean", "vote"] = "mean") -> Tensor:
        """One label map per image, "b *space": arg-max of the mean probabilities, or the weighted majority vote."""
        if rule not in ("mean", "vote"):
            raise UserError(f"fused: unknown rule {rule!r}; known: mean, vote")
        return (self.mean if rule == "mean" else self.frequency).argmax(1)

    def to(self, device: torch.device | str) -> Samples:
        """A copy on another device."""
        return replace(self, labels=self.labels.to(device), mean=self.mean.to(device), weights=self.weights.to(device))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice) -> Samples:
        """The samples of one image, or of a slice of the images; the batch axis stays."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of samples of {len(self)} images")
            index = slice(index, index + 1 or None)
        return replace(self, labels=self.labels[index], mean=self.mean[index], weights=self.weights[index])

    def save(self, path: str | Path) -> Path:
        """Write everything to one .npz file, all or nothing. Read it with `Samples.load`."""
        path = Path(path)
        if path.suffix != ".npz":
            raise UserError(f"save: expected a file name that ends in .npz, got {path}")
        arrays = {key: getattr(self, key).cpu().numpy() for key in ("labels", "mean", "weights")}
        arrays["labels"] = arrays["labels"].astype(np.uint8 if self.num_classes <= 256 else np.int32)
        facts: dict[str, Any] = {"seed": self.seed, "evaluations": self.evaluations}
        if self.info is not None:
            facts["info"] = self.info.model_dump(mode="json")
        if self.window is not None:
            facts["window"] = self.window
        with replaced_file(path) as scratch, scratch.open("wb") as stream:
            np.savez_compressed(stream, **arrays, facts=np.array(json.dumps(facts)))
        return path

    @classmethod
    def load(cls, path: str | Path) -> Samples:
        """Read what `save` wrote; no code of the file is run."""
        try:
            with np.load(path, allow_pickle=False) as file:
                with zipfile.ZipFile(path) as archive:
                    check_memory(12 * sum(entry.file_size for entry in archive.infolist()), str(path))
                labels, mean, weights = (torch.from_numpy(file[key]) for key in ("labels", "mean", "weights"))
                facts = parse_json(str(file["facts"]), f"{path}: facts")
                seed, evaluations = facts["seed"], facts["evaluations"]
                window = tuple((int(a), int(b)) for a, b in facts["window"]) if "window" in facts else None
        except FileNotFoundError:
            raise UserError(f"no samples at {path}: no such file") from None
        except UserError:
            raise
        except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
            raise UserError(f"{path} does not hold samples written by Samples.save ({error})") from None
        info = None if "info" not in facts else DatasetInfo.parse(facts["info"], where=str(path))
        return cls(labels.long(), mean, weights, seed, evaluations, info, window)

    def __repr__(self) -> str:
        (b, n), size = self.labels.shape[:2], "×".join(map(str, self.labels.shape[2:]))
        return (
            f"Samples({b} image{'s' * (b > 1)} of {size} pixels, {n} label map{'s' * (n > 1)} each, "
            f"{self.num_classes} classes, seed {self.seed}, evaluations {self.evaluations})"
        )

    def _repr_html_(self) -> str | None:
        return notebook.html(self)


def reaches_border(marked: Tensor, window: Window | None) -> Tensor:
    """Whether any pixel of "b n *space" is marked at a border of the window inside the image, "b n" bool."""
    found = torch.zeros(marked.shape[:2], dtype=torch.bool, device=marked.device)
    for axis, (start, stop) in enumerate(window or (), start=2):
        borders = [start] * (start > 0) + [stop - 1] * (stop < marked.shape[axis])
        for border in borders:
            found |= marked.select(axis, border).flatten(2).any(2)
    return found


def central(length: int, side: int | None) -> slice:
    """The central `side` of `length` pixels; all of them if there are fewer, or if side is None."""
    side = length if side is None else min(length, side)
    return slice((length - side) // 2, (length - side) // 2 + side)
