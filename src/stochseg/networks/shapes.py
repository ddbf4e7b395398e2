"""Padding, cropping and one-hot coding for any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_to_multiple(x: Tensor, multiple: int, mode: str = "replicate") -> Tensor:
    """Pad all spatial axes at their end to multiples of a number.

    Args:
        x: Maps "b c *space".
        multiple: Number that divides every size of the result.
        mode: Mode of `torch.nn.functional.pad`: "replicate" repeats the edge, "constant" adds zeros.

    Returns:
        The padded maps "b c *space", or `x` itself if nothing is missing.

    Example:
        >>> pad_to_multiple(torch.zeros(1, 3, 130, 96), 16).shape
        torch.Size([1, 3, 144, 96])
    """
    amounts = [amount for size in reversed(x.shape[2:]) for amount in (0, -size % multiple)]  # from the last axis
    return F.pad(x, amounts, mode=mode) if any(amounts) else x


def crop(x: Tensor, size: Sequence[int]) -> Tensor:
    """Return the first `size` entries of the last axes of "... *space": the inverse of `pad_to_multiple`."""
    index: tuple[EllipsisType | slice, ...] = (..., *(slice(n) for n in size))
    return x[index]


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return labels "b *space" int64 as indicators "b l *space"."""
    shape = (len(labels), num_classes, *labels.shape[1:])
    return torch.zeros(shape, dtype=dtype, device=labels.device).scatter_(1, labels[:, None], 1.0)
