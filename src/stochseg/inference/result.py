"""The samples of one input as compact arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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
        """Convert samples; the b images of `samples` are the slices, first to last."""
        labels = samples.labels.cpu().numpy().astype(label_type(samples.num_classes), copy=False)
        mean, weights = (x.float().cpu().numpy() for x in (samples.mean, samples.weights))
        return cls(labels, mean, weights, samples.evaluations, samples.window)

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


def to_numpy(samples: Samples) -> dict[str, npt.NDArray[Any]]:
    """Convert samples to numpy arrays.

    Args:
        samples: labels "b n h w" and what belongs to them.

    Returns:
        labels "b n h w" and fused "b h w" as uint8 (uint16 above 256 classes); mean "b l h w", entropy "b h w" and
        weights "b n" as float32.

    >>> import stochseg, torch
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=4, multipliers=[1])
    >>> arrays = to_numpy(model.sample(torch.zeros(1, 1, 8, 8), 3))
    >>> arrays["labels"].shape, str(arrays["labels"].dtype), arrays["entropy"].shape
    ((1, 3, 8, 8), 'uint8', (1, 8, 8))
    """
    result = StackResult.from_samples(samples)
    return {part: getattr(result, part) for part in PARTS}
