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
from stochseg.limits import check_memory
from stochseg.types.info import DatasetInfo

Window = tuple[tuple[int, int], ...]
"""A part of an image: first pixel and last + 1 per axis."""


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
