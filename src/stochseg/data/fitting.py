"""Images of any size at one size: resized with their aspect kept, padded, and samples brought back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.data.protocol import SegmentationData
from stochseg.types import DatasetInfo, Example, Spacing

Size = tuple[int, int]
VOID = 255
"""Label of padding in data that have no void label, unless it is one of their classes."""


@dataclass(frozen=True)
class Fit:
    """Resize images of `before` (h, w) to the largest size of the same aspect within `size`, and pad around it.

    An image that has this size stays as it is, so a second fit changes nothing.

    >>> fit = Fit((150, 200), (96, 96))
    >>> fit.inner
    (72, 96)
    >>> tuple(fit.image(torch.zeros(3, 150, 200)).shape), tuple(fit.undo_labels(torch.zeros(96, 96)).shape)
    ((3, 96, 96), (150, 200))
    """

    before: Size
    size: Size

    @property
    def inner(self) -> Size:
        """Height and width of the image within the padding."""
        (h, w), (height, width) = self.before, self.size
        scale = min(height / h, width / w)
        return max(1, min(height, round(h * scale))), max(1, min(width, round(w * scale)))

    def image(self, image: Tensor) -> Tensor:
        """Resize "… c h w" smoothly, and pad it with the pixels of its edge."""
        return _pad(resize_image(image, self.inner), self.size, None)

    def labels(self, labels: Tensor, void: int) -> Tensor:
        """Resize "… h w" to the nearest label, and pad it with the void label."""
        return _pad(nearest(labels, self.inner), self.size, void)

    def undo_labels(self, labels: Tensor) -> Tensor:
        """Cut the padding off "… h w", and resize the rest back to the nearest label."""
        return nearest(self._cut(labels), self.before)

    def undo_probabilities(self, mean: Tensor) -> Tensor:
        """Cut the padding off "b l h w", and resize the rest back smoothly."""
        return resize_image(self._cut(mean), self.before)

    def _cut(self, maps: Tensor) -> Tensor:
        top, left = _offset(self.inner, self.size)
        return maps[..., top : top + self.inner[0], left : left + self.inner[1]]


def resize_image(image: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize "… c h w", or "… c d h w" if size is (d, h, w), smoothly and without aliasing."""
    if tuple(image.shape[-len(size) :]) == size:
        return image
    if len(size) == 3:
        depth, height, width = size
        slices = resize_image(image, (height, width)).flatten(-2)
        return resize_image(slices, (depth, height * width)).reshape(*image.shape[:-3], *size)
    flat = image.reshape(-1, *image.shape[-3:])
    out = F.interpolate(flat, list(size), mode="bilinear", antialias=True, align_corners=False)
    return out.reshape(*image.shape[:-2], *size)


def nearest(labels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize the last axes of label maps "… *space" to the nearest label."""
    for axis, new in enumerate(size, labels.ndim - len(size)):
        old = labels.shape[axis]
        if old != new:
            centers = (torch.arange(new, device=labels.device, dtype=torch.float64) + 0.5) * old / new
            labels = labels.index_select(axis, centers.long().clamp(max=old - 1))
    return labels


def fit_example(example: Example, size: Size, void: int) -> Example:
    """Fit an image and its label maps; the padding is void."""
    h, w = example.image.shape[-2:]
    fit = Fit((h, w), size)
    image, raters = fit.image(example.image), fit.labels(example.raters, void)
    return replace(example, image=image, raters=raters, spacing=scale_spacing(example.spacing, (h, w), fit.inner))


def scale_spacing(spacing: Spacing | None, before: Sequence[int], after: Sequence[int]) -> Spacing | None:
    """The spacing of an image whose last axes were resized.

    >>> scale_spacing((2.5, 0.7, 0.7), (64, 64), (32, 128))
    (2.5, 1.4, 0.35)
    """
    if spacing is None:
        return None
    scaled = (unit * old / new for unit, old, new in zip(spacing[-len(before) :], before, after, strict=True))
    return (*spacing[: -len(before)], *scaled)


def pad_together(examples: Sequence[Example], void: int) -> list[Example]:
    """Pad examples to the largest size among them, along all axes; the padding is void."""
    size = tuple(map(max, zip(*(e.image.shape[1:] for e in examples), strict=True)))
    return [pad_example(e, size, void) for e in examples]


def pad_example(example: Example, size: tuple[int, ...], void: int) -> Example:
    """Pad the image with the pixels of its edge and the label maps with void, around the center.

    Args:
        example: An image or volume.
        size: Of all its axes; an axis that is longer stays as it is.
        void: Label of the padding.

    Returns:
        The padded example.

    Example:
        >>> from stochseg.data import Phantoms
        >>> padded = pad_example(Phantoms("train", size=16, count=1)[0], (20, 16), void=255)
        >>> tuple(padded.image.shape), padded.raters[0, :4, 0].tolist()
        ((1, 20, 16), [255, 255, 0, 0])
    """
    size = tuple(map(max, example.image.shape[1:], size))
    return replace(example, image=_pad(example.image, size, None), raters=_pad(example.raters, size, void))


def void_label(info: DatasetInfo) -> int:
    """The void label of data, or an unused label for padding."""
    return info.ignore if info.ignore is not None else max(VOID, info.num_classes)


class Fitted:
    """A split of a data set with every example fitted into one size.

    Args:
        data: The split.
        size: Height and width.

    Example:
        >>> from stochseg.data import Fitted, Phantoms
        >>> wide = Fitted(Phantoms("train", size=32, count=2), (16, 24))
        >>> tuple(wide[0].image.shape), wide.info.ignore, wide[0].raters[0, 0, :5].tolist()
        ((1, 16, 24), 255, [255, 255, 255, 255, 0])
    """

    def __init__(self, data: SegmentationData, size: Size) -> None:
        self.data, self.size = data, size
        self.info = data.info.model_copy(update={"ignore": void_label(data.info), "fit": size})

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        return fit_example(self.data[index], self.size, void_label(self.info))


def _offset(inner: Sequence[int], size: Sequence[int]) -> list[int]:
    return [(outer - length) // 2 for length, outer in zip(inner, size, strict=True)]


def _pad(maps: Tensor, size: tuple[int, ...], value: int | None) -> Tensor:
    """Pad the last axes "… *space" around their center with a value, or with the pixels of the edge."""
    inner = maps.shape[-len(size) :]
    if inner == size:
        return maps
    before = _offset(inner, size)
    # F.pad wants (first, last) of the last axis, then of the one before it, ...
    around = [n for i in reversed(range(len(size))) for n in (before[i], size[i] - inner[i] - before[i])]
    if value is not None:
        return F.pad(maps, around, value=value)
    return F.pad(maps.reshape(-1, 1, *inner), around, mode="replicate").reshape(*maps.shape[: -len(size)], *size)
