"""The samples of one input as compact arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stochseg.errors import UserError
from stochseg.types import Samples, Window

LabelArray = npt.NDArray[np.unsignedinteger[Any]]
FloatArray = npt.NDArray[np.float32]

PARTS = ("labels", "fused", "mean", "entropy", "weights")
"""The arrays of a result, by name."""


def label_type(num_classes: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest integer type that holds the labels."""
    return np.uint8 if num_classes <= 256 else np.uint16


@dataclass(frozen=True)
class StackResult:
    """Samples of a stack of slices in an eighth of the memory of `Samples`, whose labels are int64.

    labels: "s n h w" uint8 (uint16 above 256 classes); mean: "s l h w" float32; weights: "s n" float32;
    evaluations: network evaluations per sample; window: the part that the model labels, if it is not all.
    """

    labels: LabelArray
    mean: FloatArray
    weights: FloatArray
    evaluations: int = 1
    window: Window | None = None

    @classmethod
    def from_samples(cls, samples: Samples) -> StackResult:
        """Convert the samples of one volume, "1 n d h w", or of the slices "s n h w" of one, first to last.

        Raises:
            UserError: for samples of several volumes.
        """
        arrays = _compact(samples)
        if samples.labels.ndim == 4:
            return cls(*arrays, samples.evaluations, samples.window)
        if len(samples) > 1:
            raise UserError(f"expected samples of one volume, got {len(samples)}; convert samples[0], samples[1] …")
        labels, mean, weights = (x[0] for x in arrays)
        weights = np.tile(weights, (labels.shape[1], 1))
        window = samples.window and samples.window[1:]  # a model labels all slices
        return cls(labels.swapaxes(0, 1), mean.swapaxes(0, 1), weights, samples.evaluations, window)

    @cached_property
    def fused(self) -> LabelArray:
        """Arg-max of the mean probabilities, "s h w"."""
        return torch.from_numpy(self.mean).argmax(1).numpy().astype(label_type(self.mean.shape[1]))

    @property
    def entropy(self) -> FloatArray:
        """Entropy of the mean probabilities in nats, "s h w"."""
        mean = torch.from_numpy(self.mean)
        entropy: FloatArray = (-torch.xlogy(mean, mean).sum(1)).numpy()
        return entropy

    def samples_of(self, index: int, stride: int) -> Samples:
        """Return one slice as `Samples`, of which every `stride`-th pixel is kept."""
        pixels = (slice(index, index + 1), slice(None), slice(None, None, stride), slice(None, None, stride))
        labels, mean = torch.from_numpy(self.labels[pixels].astype(np.int64)), torch.from_numpy(self.mean[pixels])
        window = self.window and tuple((start // stride, -(-stop // stride)) for start, stop in self.window)
        weights = torch.from_numpy(self.weights[index : index + 1])
        return Samples(labels, mean, weights, 0, self.evaluations, window=window)


def _compact(samples: Samples) -> tuple[LabelArray, FloatArray, FloatArray]:
    """Labels, mean and weights in the smallest types that hold them."""
    labels = samples.labels.cpu().numpy().astype(label_type(samples.num_classes), copy=False)
    mean, weights = (x.float().cpu().numpy() for x in (samples.mean, samples.weights))
    return labels, mean, weights


def to_numpy(samples: Samples) -> dict[str, npt.NDArray[Any]]:
    """Convert samples to numpy arrays.

    Args:
        samples: labels "b n *space" and what belongs to them.

    Returns:
        labels "b n *space" and fused "b *space" as uint8 (uint16 above 256 classes); mean "b l *space", entropy
        "b *space" and weights "b n" as float32.

    >>> import stochseg, torch
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=4, multipliers=[1])
    >>> arrays = to_numpy(model.sample(torch.zeros(1, 1, 8, 8), 3))
    >>> arrays["labels"].shape, str(arrays["labels"].dtype), arrays["entropy"].shape
    ((1, 3, 8, 8), 'uint8', (1, 8, 8))
    """
    result = StackResult(*_compact(samples))
    return {part: getattr(result, part) for part in PARTS}
