"""Plausible label maps: what every model draws."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stochseg import notebook
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.files import replaced_file
from stochseg.limits import MAX_CLASSES, check_memory
from stochseg.types.info import DatasetInfo

Window = tuple[tuple[int, int], ...]
"""A part of an image: first pixel and last + 1 per axis."""
TOLERANCE = 1e-2
"""Rounding of probabilities: half precision and 8-bit maps are accepted."""


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

    @classmethod
    def from_labels(
        cls, labels: Any, num_classes: int | None = None, *, weights: Any = None, info: DatasetInfo | None = None
    ) -> Samples:
        """Take label maps that exist, such as those of an ensemble or of several raters, as samples.

        Args:
            labels: integers "n h w" of one image, "b n h w" of several, or "b n d h w" of volumes ("n d h w" if `info`
                says that it is a volume).
            num_classes: labels, the background included; default: that of `info`, else the largest label + 1.
            weights: "n" or "b n", not negative; default: equal. They are scaled to a sum of 1 per image.
            info: class names and colors, if known.

        Returns:
            Samples whose mean is the weighted fraction of the maps with each label.

        Raises:
            UserError: if a label is no class, or a shape does not fit.

        >>> Samples.from_labels(np.array([[[0, 1]], [[1, 1]]])).mean[0, 1].tolist()
        [[0.5, 1.0]]
        """
        maps = _integers(labels, info)
        classes = num_classes or (info.num_classes if info is not None else max(2, int(maps.max()) + 1))
        classes = min(classes, MAX_CLASSES)
        if not 0 <= int(maps.min()) <= int(maps.max()) < classes:
            raise UserError(
                f"from_labels: expected labels 0..{classes - 1}, got {int(maps.min())}..{int(maps.max())}; pass "
                "num_classes, or number the classes from 0"
            )
        mean = torch.zeros(len(maps), classes, *maps.shape[2:], device=maps.device)
        samples = cls(maps, mean, _weights(weights, maps), 0, info=info)
        return replace(samples, mean=samples.frequency)

    @classmethod
    def from_probabilities(cls, probabilities: Any, *, weights: Any = None, info: DatasetInfo | None = None) -> Samples:
        """Take the probability maps of several members, such as the folds of an ensemble, as samples.

        Sample i is the most probable label of member i at every pixel, and the mean is the average of the members'
        probabilities. A single probability map says nothing about how pixels belong together: draw samples of it with
        `stochseg.analysis.sample_soft_map`.

        Args:
            probabilities: "n l h w" of one image, n members and l labels; "b n l h w" of several, or "b n l d h w" of
                volumes ("n l d h w" if `info` says that it is a volume).
            weights: of the members, as in `from_labels`.
            info: class names and colors, if known.

        Raises:
            UserError: if the values are no probabilities, or a shape does not fit.

        >>> two = np.array([[[[0.9, 0.4]], [[0.1, 0.6]]], [[[0.3, 0.2]], [[0.7, 0.8]]]])  # members, labels, 1×2 pixels
        >>> samples = Samples.from_probabilities(two)
        >>> samples.labels.tolist(), [round(float(p), 2) for p in samples.mean[0, 1, 0]]
        ([[[[0, 1]], [[1, 1]]]], [0.4, 0.7])
        """
        members = as_tensor(probabilities, "from_probabilities")
        space = 3 if info is not None and info.spatial_dims == 3 else 2
        members = members[None] if members.ndim == space + 2 else members
        if members.ndim not in (5, 6) or not members.is_floating_point() or members.numel() == 0:
            raise UserError(
                'from_probabilities: expected floats "n l h w" of one image, "b n l h w", or "b n l d h w" of volumes, '
                f"got shape {tuple(members.shape)} {members.dtype}"
            )
        check_probabilities(members, "from_probabilities", axis=2)
        labels = members.argmax(2)
        parts = _weights(weights, labels)
        spread = parts.view(*parts.shape, *[1] * (members.ndim - 2)).to(members)
        mean = (members * spread).sum(1).float().clamp(0, 1)  # rounded values may be slightly outside
        return cls(labels, mean, parts, 0, info=info)

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


def check_probabilities(values: Tensor, where: str, axis: int) -> None:
    """Raise a UserError unless values are in 0..1 and sum to 1 along the axis of labels, within rounding."""
    low, high = float(values.min()), float(values.max())
    off = float((values.sum(axis, dtype=torch.float64) - 1).abs().max())
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE and off <= TOLERANCE):  # NaN fails, too
        raise UserError(
            f"{where}: expected probabilities that sum to 1 over the labels, got values from {low:.4g} to {high:.4g} "
            f"with sums off by {off:.2g}; apply a softmax (or a sigmoid, and add 1 - p for the background)"
        )


def as_tensor(values: Any, where: str) -> Tensor:
    """A tensor of an array of any strides and byte order, or of a list of arrays or tensors.

    Raises:
        UserError: if they are no numbers, or have several shapes.
    """
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where}: expected an array or a tensor of numbers, or a list of some of one shape: {error}"
        ) from None


def _integers(labels: Any, info: DatasetInfo | None) -> Tensor:
    """Label maps as "b n *space" int64."""
    maps = as_tensor(labels, "from_labels")
    maps = maps[None] if maps.ndim == (4 if info is not None and info.spatial_dims == 3 else 3) else maps
    if maps.is_floating_point() or maps.is_complex() or maps.ndim not in (4, 5) or maps.numel() == 0:
        raise UserError(
            'from_labels: expected integers "n h w" of one image, "b n h w", or "b n d h w" for volumes, got shape '
            f"{tuple(maps.shape)} {maps.dtype}"
        )
    return maps.long()


def _weights(weights: Any, labels: Tensor) -> Tensor:
    """Weights "b n" of sum 1 for label maps "b n *space"."""
    shape = labels.shape[:2]
    if weights is None:
        return torch.full(shape, 1 / shape[1], device=labels.device)
    given = torch.as_tensor(weights, dtype=torch.float64, device=labels.device)
    given = given.expand(shape) if given.shape == shape[1:] else given
    total = given.sum(-1, keepdim=True)
    if given.shape != shape or not bool((given >= 0).all() and (total > 0).all() and total.isfinite().all()):
        raise UserError(
            f'weights: expected finite numbers of at least 0, not all 0, "n" or "b n" {tuple(shape)}, got shape '
            f"{tuple(given.shape)}"
        )
    return (given / total).float()


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
