"""Shapes that networks need: padding to a multiple of the stride, one-hot label maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_to_multiple(x: Tensor, multiple: int, mode: str = "replicate") -> Tensor:
    """Extend "b c h w" at the bottom and right until h and w are multiples."""
    h, w = x.shape[-2:]
    amount = (0, -w % multiple, 0, -h % multiple)
    return F.pad(x, amount, mode=mode) if any(amount) else x


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """labels "b h w" as "b l h w"."""
    shape = (len(labels), num_classes, *labels.shape[1:])
    return torch.zeros(shape, dtype=dtype, device=labels.device).scatter_(1, labels[:, None], 1.0)
