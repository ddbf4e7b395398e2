"""Networks with random parameters, and inputs of denoisers."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def randomized(net: M, seed: int = 0) -> M:
    """Replace every parameter by noise, so that the output depends on everything it can depend on."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return net


def noisy_labels(labels: int, channels: int, h: int, w: int, rows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Image "b c h w", x_t "b h w" and t "b"."""
    generator = torch.Generator().manual_seed(h * 100 + w)
    image = torch.randn(rows, channels, h, w, generator=generator)
    return image, torch.randint(labels, (rows, h, w), generator=generator), torch.arange(1, rows + 1) * 50
