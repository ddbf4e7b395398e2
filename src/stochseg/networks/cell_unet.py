"""The image tower of `ccdm-fast` as a backbone of other methods: a U-Net on cells of pixels, with maps at full size.

A method on this backbone differs from `ccdm-fast` in what it does with the features and not in what they cost.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.networks.blocks import group_norm, zeroed
from stochseg.networks.shapes import fold, to_slices, unfold
from stochseg.networks.two_tower import Pyramid, TowerConfig
from stochseg.networks.unet import UNet, UNetConfig


class CellUNet(nn.Module):
    """The pyramid of an image tower, and a convolution from its finest cells to maps of their pixels.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        config: Shape of the tower.
        spatial_dims: 2 for images, 3 for volumes.

    Example:
        >>> import torch
        >>> net = CellUNet(1, 5, TowerConfig(tower=(8, 16)))
        >>> net(torch.zeros(2, 1, 16, 12)).shape
        torch.Size([2, 5, 16, 12])
    """

    def __init__(self, in_channels: int, out_channels: int, config: TowerConfig, *, spatial_dims: int = 2):
        super().__init__()
        self.patch, self.channels = config.patch, list(config.tower)
        cell, width = config.patch**2, config.tower[0]
        volumes = spatial_dims == 3
        self.pyramid = Pyramid(in_channels * cell, config.tower, config.tower_blocks, None, config, volumes)
        last = zeroed(nn.Conv2d(width, out_channels * cell, 3, padding=1))
        self.head = nn.Sequential(group_norm(width, config.groups), nn.SiLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """Map x "b c *space", whose height and width are multiples of the largest stride, to "b out *space"."""
        return self.with_bottleneck(x)[0]

    def with_bottleneck(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the maps "b out *space" and those of the coarsest level, "b c h w" or "(b d) c h w"."""
        slices = to_slices(x)
        flat, depth = fold(slices)
        levels = self.pyramid(F.pixel_unshuffle(flat, self.patch), depth=depth)
        out = F.pixel_shuffle(self.head(levels[0]), self.patch)
        return to_slices(unfold(out, slices)), levels[-1]


class TowerOption(Config):
    """The choice between a method's own backbone and the image tower of `ccdm-fast`."""

    image_tower: TowerConfig | None = Field(
        None, description="compute features with the image tower of ccdm-fast, of this shape; null: the own network"
    )

    def common_stride(self, own: int) -> int:
        """The number that divides height and width of padded images, for networks that need multiples of `own`."""
        return own if self.image_tower is None else math.lcm(own, self.image_tower.strides[-1])


class BackboneConfig(UNetConfig, TowerOption):
    """Shape of a U-Net, which an image tower may replace."""

    @property
    def stride(self) -> int:
        """Height and width must be multiples of this."""
        return super().stride if self.image_tower is None else self.image_tower.strides[-1]


def make_backbone(in_channels: int, out_channels: int, config: BackboneConfig, *, spatial_dims: int = 2) -> nn.Module:
    """Return the U-Net without time steps of a config, or the image tower that replaces it."""
    if config.image_tower is not None:
        return CellUNet(in_channels, out_channels, config.image_tower, spatial_dims=spatial_dims)
    return UNet(in_channels, out_channels, config, timed=False, spatial_dims=spatial_dims)
