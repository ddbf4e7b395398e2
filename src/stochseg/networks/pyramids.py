"""Convolutional pyramids, the building blocks of the variational segmenters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.networks.blocks import SliceMixing, group_norm

Stage = Callable[[int, int], nn.Module]
"""(channels in, channels out) -> the layers of one level, which keep the resolution."""


def conv(in_channels: int, out_channels: int, kernel: int = 3) -> nn.Conv2d:
    """Return a convolution that keeps the size, with He initialization for ReLU."""
    layer = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.trunc_normal_(layer.bias, std=1e-3)
    return layer


def conv_stack(
    in_channels: int, out_channels: int, convs: int, groups: int | None = None, kernel: int = 3
) -> nn.Sequential:
    """Return `convs` times convolution, normalization in `groups` (None: no normalization) and ReLU."""
    layers: list[nn.Module] = []
    for c in [in_channels] + [out_channels] * (convs - 1):
        layers.append(conv(c, out_channels, kernel))
        if groups is not None:
            layers.append(group_norm(out_channels, groups))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def twice(x: Tensor, mode: str = "bilinear") -> Tensor:
    """Resize x "b c h w" to twice the resolution."""
    return F.interpolate(x, scale_factor=2.0, mode=mode, align_corners=False if mode == "bilinear" else None)


def halved(x: Tensor) -> Tensor:
    """Average x "b c h w" over 2×2 pixels; a side of one pixel stays."""
    h, w = x.shape[-2:]
    return F.avg_pool2d(x, (min(2, h), min(2, w)))


def enlarged(x: Tensor, like: Tensor, mode: str = "bilinear") -> Tensor:
    """Undo `halved`: resize x to the height and width of `like`."""
    size = like.shape[-2:]
    return F.interpolate(x, size=size, mode=mode, align_corners=False if mode == "bilinear" else None)


MIXING_GROUPS = 8


def _mixing(channels: Sequence[int], volumes: bool) -> nn.ModuleList:
    """One layer per level that mixes the slices of volumes; none for images."""
    return nn.ModuleList([SliceMixing(c, MIXING_GROUPS) for c in channels] if volumes else [])


class Contracting(nn.Module):
    """One stage per level, each at half the resolution of the one before (`halved`); in volumes, each stage ends with
    `SliceMixing`."""

    def __init__(self, in_channels: int, channels: Sequence[int], stage: Stage, *, volumes: bool = False):
        super().__init__()
        self.stages = nn.ModuleList([stage(a, b) for a, b in pairwise((in_channels, *channels))])
        self.mixing = _mixing(channels, volumes)

    def forward(self, x: Tensor, depth: int = 1) -> tuple[Tensor, ...]:
        """Map x "b c h w" to the features of all levels, finest first. depth: slices per volume."""
        levels: list[Tensor] = []
        for level, stage in enumerate(self.stages):
            x = stage(halved(x) if levels else x)
            x = self.mixing[level](x, depth) if self.mixing else x
            levels.append(x)
        return tuple(levels)


class Expanding(nn.Module):
    """Decoder of `Contracting`: upsampling by 2, concatenation with the features of that level, then a stage.

    Args:
        channels: Channels of the levels, finest first.
        stage: Builder of a level's layers.
        coarsest: Channels of the input at the coarsest level; default: those of its features.
        mode: Mode of the upsampling.
        volumes: Whether the images are slices of volumes, which are mixed after each stage.
    """

    def __init__(
        self,
        channels: Sequence[int],
        stage: Stage,
        *,
        coarsest: int | None = None,
        mode: str = "bilinear",
        volumes: bool = False,
    ):
        super().__init__()
        self.mode = mode
        incoming = (*channels[:-1], channels[-1] if coarsest is None else coarsest)
        self.stages = nn.ModuleList([stage(a + b, a) for a, b in pairwise(incoming)])
        self.mixing = _mixing(channels[:-1], volumes)

    def forward(self, x: Tensor, *finer: Tensor, depth: int = 1) -> Tensor:
        """Map x at the coarsest level and the features of the finer levels, finest first, to the finest level.

        depth: slices per volume.
        """
        for level, skip in reversed(list(enumerate(finer))):
            x = self.stages[level](torch.cat([enlarged(x, skip, self.mode), skip], dim=1))
            x = self.mixing[level](x, depth) if self.mixing else x
        return x
