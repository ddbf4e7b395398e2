"""Transforms that act on an image and all its label maps at once: augmentations and resizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stochseg.data.fitting import nearest, resize_image
from stochseg.data.protocol import SegmentationData
from stochseg.types import DatasetInfo, Example, central

Augmentation = Callable[[Example, np.random.Generator, DatasetInfo], Example]

JITTER = 0.5
"""Color jitter of the paper on Cityscapes: factors of 1 ± 0.5."""


def keep(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Return the example unchanged."""
    return example


def flip_rotate(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply one of the 8 flips and quarter turns, all equally likely.

    An image that is not square keeps its shape: it gets one of the 4 flips and half turns.

    Example:
        >>> from stochseg.data import Phantoms, flip_rotate
        >>> data = Phantoms("train", size=16, count=1)
        >>> turned = flip_rotate(data[0], np.random.default_rng(0), data.info)
        >>> bool(turned.image.sum().isclose(data[0].image.sum()))
        True
    """
    height, width = example.image.shape[-2:]
    mirror = bool(rng.integers(2))
    turns = int(rng.integers(4)) if height == width else 2 * int(rng.integers(2))

    def move(maps: Tensor) -> Tensor:
        turned = torch.rot90(maps, turns, (-2, -1))
        return (turned.flip(-1) if mirror else turned).contiguous()

    spacing = example.spacing
    if spacing is not None and turns % 2:
        spacing = (spacing[1], spacing[0])
    return replace(example, image=move(example.image), raters=move(example.raters), spacing=spacing)


def flip_jitter(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Mirror photographs with probability 1/2, and jitter brightness, contrast and saturation."""
    image, labels = example.image, example.raters
    if rng.integers(2):
        image, labels = image.flip(-1), labels.flip(-1).contiguous()
    raw = info.normalization.inverse(image)
    brightness, contrast, saturation = rng.uniform(1 - JITTER, 1 + JITTER, size=3)
    raw = raw * brightness
    raw = _mix(raw, raw.mean(), contrast)
    raw = _mix(raw, raw.mean(0, keepdim=True), saturation)
    return replace(example, image=info.normalization(raw.clamp(0, 255)), raters=labels)


def resize(example: Example, size: tuple[int, int]) -> Example:
    """Resize an image (antialiased) and its label maps (nearest label) to (h, w)."""
    height, width = example.image.shape[-2:]
    if (height, width) == size:
        return example
    image, labels = resize_image(example.image, size), nearest(example.raters, size)
    spacing = example.spacing
    if spacing is not None:
        spacing = (spacing[0] * height / size[0], spacing[1] * width / size[1])
    return replace(example, image=image, raters=labels, spacing=spacing)


class Cropped:
    """A split of a data set with every example cut to its center.

    Args:
        data: The split.
        size: Height and width; a smaller example stays as it is along that axis.

    Example:
        >>> from stochseg.data import Cropped, Phantoms
        >>> data = Cropped(Phantoms("train", size=32, count=2), (16, 24))
        >>> tuple(data[0].image.shape), tuple(data[0].raters.shape), data.info.size
        ((1, 16, 24), (4, 16, 24), (16, 24))
    """

    def __init__(self, data: SegmentationData, size: tuple[int, int]) -> None:
        self.data, self.size = data, size
        self.info = data.info.model_copy(update={"size": size})

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        example = self.data[index]
        rows, columns = (central(n, side) for n, side in zip(example.image.shape[-2:], self.size, strict=True))
        image, raters = example.image[..., rows, columns], example.raters[..., rows, columns]
        return replace(example, image=image, raters=raters)


class Resized:
    """A split of a data set with every example resized to one size.

    Args:
        data: The split.
        size: Height and width.

    Example:
        >>> from stochseg.data import Phantoms, Resized
        >>> small = Resized(Phantoms("train", size=32, count=2), (16, 24))
        >>> tuple(small[0].image.shape), tuple(small[0].raters.shape), small.info.size
        ((1, 16, 24), (4, 16, 24), (16, 24))
    """

    def __init__(self, data: SegmentationData, size: tuple[int, int]) -> None:
        self.data, self.size = data, size
        self.info = data.info.model_copy(update={"size": size})

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        return resize(self.data[index], self.size)


def _mix(image: Tensor, gray: Tensor, factor: float) -> Tensor:
    return gray + (image - gray) * factor


AUGMENTATIONS: dict[str, Augmentation] = {"none": keep, "flip-rotate": flip_rotate, "flip-jitter": flip_jitter}
"""Augmentations by the name that a training config gives as `data.augment`."""
