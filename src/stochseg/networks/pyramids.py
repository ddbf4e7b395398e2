"""Plain convolutional pyramids, of which the variational segmenters build their U-Nets and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.networks.blocks import group_norm

Stage = Callable[[int, int], nn.Module]
"""(channels in, channels out) -> the layers of one level, which keep the resolution."""


def conv(in_channels: int, out_channels: int, kernel: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size, with He's initialization for the ReLU around it."""
    layer = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.trunc_normal_(layer.bias, std=1e-3)
    return layer


def conv_stack(
    in_channels: int, out_channels: int, convs: int, groups: int | None = None, kernel: int = 3
) -> nn.Sequential:
    """`convs` times convolution, normalization in `groups` (None: none), ReLU."""
    layers: list[nn.Module] = []
    for c in [in_channels] + [out_channels] * (convs - 1):
        layers.append(conv(c, out_channels, kernel))
        if groups is not None:
            layers.append(group_norm(out_channels, groups))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def twice(x: Tensor, mode: str = "bilinear") -> Tensor:
    """Twice the resolution."""
    return F.interpolate(x, scale_factor=2.0, mode=mode, align_corners=False if mode == "bilinear" else None)


class Contracting(nn.Module):
    """A stage a level, with average pooling by 2 between: "b c h w" -> the features of all levels, finest first."""

    def __init__(self, in_channels: int, channels: Sequence[int], stage: Stage):
        super().__init__()
        self.stages = nn.ModuleList([stage(a, b) for a, b in pairwise((in_channels, *channels))])

    def forward(self, x: Tensor) -> list[Tensor]:
        levels: list[Tensor] = []
        for stage in self.stages:
            x = stage(F.avg_pool2d(x, 2) if levels else x)
            levels.append(x)
        return levels


class Expanding(nn.Module):
    """The way back: twice the resolution, joined to the features of that level, a stage; `channels` finest first.

    `coarsest`: channels that come in at the coarsest level, if not those of its features.
    """

    def __init__(self, channels: Sequence[int], stage: Stage, *, coarsest: int | None = None, mode: str = "bilinear"):
        super().__init__()
        self.mode = mode
        incoming = (*channels[:-1], channels[-1] if coarsest is None else coarsest)
        self.stages = nn.ModuleList([stage(a + b, a) for a, b in pairwise(incoming)])

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        """x: at the coarsest level; finer: the features of the levels above it, finest first."""
        for stage, skip in zip(reversed(self.stages), reversed(finer), strict=True):
            x = stage(torch.cat([twice(x, self.mode), skip], dim=1))
        return x
