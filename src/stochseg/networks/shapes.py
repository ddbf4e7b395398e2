"""Padding, cropping, one-hot coding and slices, for images and volumes alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_to_multiple(x: Tensor, multiple: int | tuple[int, int], mode: str = "replicate") -> Tensor:
    """Pad height and width at their end to multiples of a number.

    Args:
        x: Maps "b c *space"; the slices of volumes stay as they are.
        multiple: Number that divides height and width of the result, or one number for each.
        mode: Mode of `torch.nn.functional.pad`: "replicate" repeats the edge, "constant" adds zeros.

    Returns:
        The padded maps "b c *space", or `x` itself if nothing is missing.

    Example:
        >>> pad_to_multiple(torch.zeros(1, 3, 130, 96), 16).shape
        torch.Size([1, 3, 144, 96])
    """
    h, w = (multiple, multiple) if isinstance(multiple, int) else multiple
    amounts = [0, -x.shape[-1] % w, 0, -x.shape[-2] % h]  # from the last axis
    slices = [0] * (2 * x.ndim - 8)  # torch pads 5-D maps by their edge in three axes only
    return F.pad(x, amounts + slices, mode=mode) if any(amounts) else x


def to_slices(x: Tensor) -> Tensor:
    """Return volumes "b c d h w" as slices "b d c h w", or slices as volumes, and images "b c h w" as they are."""
    return x.transpose(1, 2) if x.ndim == 5 else x


def fold(x: Tensor) -> tuple[Tensor, int]:
    """Return slices "b d c h w" as images "(b d) c h w" with their number d, and images "b c h w" as they are."""
    return (x.flatten(0, 1), x.shape[1]) if x.ndim == 5 else (x, 1)


def slice_wise(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a network for images "b c h w" to images, or to every slice of volumes "b c d h w"."""
    slices = to_slices(x)
    return to_slices(unfold(network(fold(slices)[0]), slices))


def unfold(x: Tensor, like: Tensor) -> Tensor:
    """Undo `fold` for maps "(b d) …" made of `like`: return "b d …", or images as they are."""
    return torch.unflatten(x, 0, tuple(like.shape[:2])) if like.ndim == 5 else x


def crop(x: Tensor, size: Sequence[int]) -> Tensor:
    """Return the first `size` entries of the last axes of "... *space": the inverse of `pad_to_multiple`."""
    index: tuple[EllipsisType | slice, ...] = (..., *(slice(n) for n in size))
    return x[index]


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return labels "b *space" as indicators "b l *space": zeros where a label is none of the classes, as if masked."""
    classes = torch.arange(num_classes, device=labels.device).view(-1, *[1] * (labels.ndim - 1))
    return (labels[:, None] == classes).to(dtype)
