"""Transforms that act on an image and all its label maps at once: augmentations and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.data.fitting import nearest, resize_image, scale_spacing
from stochseg.types import DatasetInfo, Example

Augmentation = Callable[[Example, np.random.Generator, DatasetInfo], Example]

JITTER = 0.5
"""Color jitter of the paper on Cityscapes: factors of 1 ± 0.5."""
LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the gray value, as in torchvision."""

MAX_TURN, MAX_LOG_SCALE, MAX_SHIFT = np.pi / 12, np.log(1.25), 0.08
"""Limits of a warp: radians, logarithm of the scale, shift as a fraction of the side."""
BENDS, BEND = 4, 0.015
"""Knots per side of a warp's smooth displacement, and its standard deviation there as a fraction of the side."""


def keep(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Return the example unchanged."""
    return example


def flip_rotate(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply one of the 8 flips and quarter turns, all equally likely.

    An image that is not square keeps its shape: it gets one of the 4 flips and half turns. A volume is flipped and
    turned in the plane of its slices.

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
        spacing = (*spacing[:-2], spacing[-1], spacing[-2])
    return replace(example, image=move(example.image), raters=move(example.raters), spacing=spacing)


def flip_rotate_slices(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply `flip_rotate` in the plane of the slices, reverse their order half of the time, and sometimes repeat them.

    One volume in eight becomes one of its slices, again and again, and one in eight shows every slice of a part twice,
    as thinner slices would: what a model says of a volume must not depend on how often it is cut. An image, which has
    no slices, is only flipped and turned.

    Args:
        example: The volume with its raters.
        rng: Source of randomness.
        info: Facts about the data.

    Returns:
        The example with moved voxels; its number of slices is the same.
    """
    example = flip_rotate(example, rng, info)
    if example.raters.ndim < 4:
        return example
    depth, kind = example.image.shape[1], int(rng.integers(16))
    chosen = np.arange(depth)
    if kind < 2:
        chosen = np.full(depth, rng.integers(depth))
    elif kind < 4:
        chosen = rng.integers(depth - (depth + 1) // 2 + 1) + chosen // 2
    if kind % 2:
        chosen = chosen[::-1].copy()
    rows = torch.from_numpy(chosen)
    return replace(example, image=example.image[:, rows], raters=example.raters[:, rows])


def flip(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Mirror left and right with probability 1/2."""
    if not rng.integers(2):
        return example
    image, raters = (maps.flip(-1).contiguous() for maps in (example.image, example.raters))
    return replace(example, image=image, raters=raters)


def flip_jitter(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Mirror photographs with probability 1/2, and jitter their colors, 8 bits per channel."""
    example = flip(example, rng, info)
    factors, order = rng.uniform(1 - JITTER, 1 + JITTER, size=3), rng.permutation(3)
    raw = jitter(info.normalization.inverse(example.image), factors.tolist(), order.tolist())
    return replace(example, image=info.normalization(raw))


def flip_jitter_warp(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply `flip_jitter`, and turn, scale, shift and bend images; volumes are only mirrored and jittered.

    Turns of up to 15 degrees, scales from 0.8 to 1.25, shifts of up to 8% and smooth displacements of some 1.5% of the
    side. The image and its label maps move together, and both repeat their edge where nothing is known.
    """
    return warp(flip_jitter(example, rng, info), rng)


def flip_rotate_jitter_warp(example: Example, rng: np.random.Generator, info: DatasetInfo) -> Example:
    """Apply `flip_rotate`, jitter brightness and contrast by a quarter, and warp as `flip_jitter_warp` does."""
    example = flip_rotate(example, rng, info)
    factors = rng.uniform(1 - JITTER / 2, 1 + JITTER / 2, size=2)
    raw = jitter(info.normalization.inverse(example.image), factors.tolist(), rng.permutation(2).tolist())
    return warp(replace(example, image=info.normalization(raw)), rng)


def warp(example: Example, rng: np.random.Generator) -> Example:
    """Turn, scale, shift and bend an image with its label maps; volumes stay as they are."""
    if example.image.ndim != 3:
        return example
    places = warped_places(example.image.shape[-2:], rng)
    image = F.grid_sample(example.image[None], places, "bilinear", "border", align_corners=False)[0]
    maps = example.raters[None].double()  # exact for any label
    raters = F.grid_sample(maps, places.double(), "nearest", "border", align_corners=False)[0]
    return replace(example, image=image, raters=raters.long())


def warped_places(size: Sequence[int], rng: np.random.Generator) -> Tensor:
    """Draw where each pixel of a warped image comes from: "1 h w 2" for `grid_sample`, x and y from -1 to 1."""
    height, width = size
    angle, scale = rng.uniform(-MAX_TURN, MAX_TURN), np.exp(rng.uniform(-MAX_LOG_SCALE, MAX_LOG_SCALE))
    shift = rng.uniform(-2 * MAX_SHIFT, 2 * MAX_SHIFT, size=2)
    cos, sin, aspect = np.cos(angle) * scale, np.sin(angle) * scale, height / width
    matrix = torch.tensor([[cos, -sin * aspect, shift[0]], [sin / aspect, cos, shift[1]]], dtype=torch.float32)
    straight = F.affine_grid(matrix[None], [1, 1, height, width], align_corners=False)
    knots = torch.from_numpy(rng.normal(0, 2 * BEND, size=(1, 2, BENDS, BENDS)).astype(np.float32))
    bend = F.interpolate(knots, (height, width), mode="bicubic", align_corners=True)
    return straight + bend.movedim(1, -1)


def jitter(raw: Tensor, factors: Sequence[float], order: Sequence[int]) -> Tensor:
    """Change brightness, contrast and saturation, as torchvision's ColorJitter does.

    Args:
        raw: "c *space" from 0 to 255.
        factors: of brightness, contrast and saturation; 1 changes nothing.
        order: in which of the three (0, 1, 2) are applied; values are cut to 0..255 after each.

    Example:
        >>> jitter(torch.tensor([100.0, 200.0]).view(1, 1, 2), (1.5, 0.5, 1.0), (0, 1, 2)).flatten().tolist()
        [176.25, 228.75]
    """
    for kind in order:
        gray = _gray(raw)
        other = (torch.zeros_like(gray), gray.mean(), gray)[kind]
        raw = (factors[kind] * raw + (1 - factors[kind]) * other).clamp(0, 255)
    return raw


def _gray(raw: Tensor) -> Tensor:
    """Gray values "1 *space": the luma of three channels, else the mean of the channels."""
    if len(raw) != len(LUMA):
        return raw.mean(0, keepdim=True)
    return (raw * torch.tensor(LUMA).view(-1, *[1] * (raw.ndim - 1))).sum(0, keepdim=True)


def default_augmentation(info: DatasetInfo) -> str:
    """Name of the augmentation that suits a data set (`data.augment: auto`).

    Upright photographs are mirrored and their colors jittered; other upright images are mirrored; all others get flips
    and quarter turns, and volumes also reversed and repeated slices. Color images of unknown orientation are only
    mirrored.

    Args:
        info: Facts about the data.

    Returns:
        A key of `AUGMENTATIONS`.

    Example:
        >>> default_augmentation(DatasetInfo(num_classes=2, image_channels=1))
        'flip-rotate'
        >>> default_augmentation(DatasetInfo(num_classes=2, image_channels=3, orientation="upright"))
        'flip-jitter'
    """
    color = info.image_channels == 3
    if info.spatial_dims == 3:
        return "flip-rotate-slices"
    if info.orientation == "free" or (info.orientation is None and not color):
        return "flip-rotate"
    return "flip-jitter" if color and info.orientation == "upright" else "flip"


def resize(example: Example, size: tuple[int, int]) -> Example:
    """Resize an image (antialiased) and its label maps (nearest label) to (h, w); a volume slice by slice."""
    before = example.image.shape[-2:]
    if before == size:
        return example
    image, labels = resize_image(example.image, size), nearest(example.raters, size)
    return replace(example, image=image, raters=labels, spacing=scale_spacing(example.spacing, before, size))


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": keep,
    "flip": flip,
    "flip-rotate": flip_rotate,
    "flip-rotate-slices": flip_rotate_slices,
    "flip-jitter": flip_jitter,
    "flip-jitter-warp": flip_jitter_warp,
    "flip-rotate-jitter-warp": flip_rotate_jitter_warp,
}
"""Augmentations by the name that a training config gives as `data.augment`."""
