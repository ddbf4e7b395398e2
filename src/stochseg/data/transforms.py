"""Transforms that act on an image and all its label maps at once: augmentations and resizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stochseg.data.fitting import nearest, resize_image
from stochseg.types import DatasetInfo, Example

Augmentation = Callable[[Example, np.random.Generator, DatasetInfo], Example]

JITTER = 0.5
"""Color jitter of the paper on Cityscapes: factors of 1 ± 0.5."""


def keep(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Return the example unchanged."""
    return example


def flip_rotate(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply one of the 8 flips and quarter turns, all equally likely.

    An image that is not square keeps its shape: it gets one of the 4 flips and half turns.

    Args:
        example: The image with its raters.
        rng: Source of randomness.
        info: Facts about the data, which other augmentations need.

    Returns:
        The example with moved pixels and spacing.

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


def _mix(image: Tensor, gray: Tensor, factor: float) -> Tensor:
    return gray + (image - gray) * factor


AUGMENTATIONS: dict[str, Augmentation] = {"none": keep, "flip-rotate": flip_rotate, "flip-jitter": flip_jitter}
"""Augmentations by the name that a training config gives as `data.augment`."""
