"""The paper's U-Net (Section 3.5), with or without a step input, with or without image features at 1/8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.networks.blocks import (
    Downsample,
    ResidualBlock,
    SelfAttention,
    SliceMixing,
    TimeEmbedding,
    Upsample,
    group_norm,
    zeroed,
)
from stochseg.networks.shapes import fold, to_slices, unfold

FEATURE_STRIDE = 8
"""The paper concatenates image features to the encoder level at 1/8 of the image."""


class UNetConfig(Config):
    """Shape of a U-Net. The defaults are the paper's LIDC network of 9M parameters."""

    base: int = Field(32, ge=1, description="channels of the first level")
    multipliers: tuple[float, ...] = Field(
        (1, 2, 2, 4, 5), min_length=1, description="channels per level, in units of base"
    )
    blocks: int = Field(2, ge=1, description="residual blocks per level of the encoder; the decoder has one more")
    attention: tuple[int, ...] = Field((8, 16, 32), description="downsampling factors with self-attention")
    head_channels: int = Field(32, ge=1, description="channels per attention head")
    groups: int = Field(32, ge=1, description="groups of the normalization; fewer keep more of the absolute brightness")
    feature_block: int = Field(
        1, ge=1, description="residual block of the encoder's level at 1/8 that image features join, counted from 1"
    )

    @property
    def stride(self) -> int:
        """Height and width must be multiples of this."""
        return 1 << (len(self.multipliers) - 1)


class Layer(nn.Module):
    """Residual block, followed by self-attention if `attends`, and by mixing of slices if `mixes`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        time_width: int | None,
        config: UNetConfig,
        *,
        attends: bool,
        mixes: bool,
    ):
        super().__init__()
        self.block = ResidualBlock(in_channels, out_channels, time_width, config.groups)
        self.attention = SelfAttention(out_channels, config.head_channels, config.groups) if attends else nn.Identity()
        self.mixing = SliceMixing(out_channels, config.groups) if mixes else None

    def forward(self, x: Tensor, time: Tensor | None, depth: int = 1) -> Tensor:
        """Map x "b c h w" to "b out h w". depth: slices per volume."""
        out: Tensor = self.attention(self.block(x, time))
        return out if self.mixing is None else self.mixing(out, depth)


class Stage(nn.Module):
    """Layers of one level of the encoder or decoder, and the resampling before or after them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.down: Downsample | None = None
        self.up: Upsample | None = None


class UNet(nn.Module):
    """Encoder and decoder with skip connections from every layer and every downsampling.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        config: Shape of the network.
        feature_channels: Channels of the image features at 1/8; 0 for none.
        timed: Whether the network reads a step t.
        spatial_dims: 2 for images, 3 for volumes: their slices pass through the layers for images, and every layer
            ends with a mixing of neighboring slices, which is nothing at the start.

    Raises:
        UserError: If the shape has no channels, cannot depend on t, or has no level at 1/8 for the features.

    Example:
        >>> net = UNet(3, 2, UNetConfig(base=8, multipliers=(1, 2)))
        >>> net(torch.zeros(1, 3, 16, 16), torch.tensor([7])).shape
        torch.Size([1, 2, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        config: UNetConfig,
        *,
        feature_channels: int = 0,
        timed: bool = True,
        spatial_dims: int = 2,
    ):
        super().__init__()
        self.config = config
        self.feature_channels = feature_channels
        self.channels = [round(config.base * m) for m in config.multipliers]
        self._check_shape(timed)
        width = 4 * config.base if timed else None
        self.time = TimeEmbedding(config.base, width) if width is not None else None

        def layer(c_in: int, c_out: int, factor: int) -> Layer:
            return Layer(c_in, c_out, width, config, attends=factor in config.attention, mixes=spatial_dims == 3)

        self.stem = nn.Conv2d(in_channels, self.channels[0], 3, padding=1)
        self.encoder = nn.ModuleList()
        current, skips = self.channels[0], [self.channels[0]]
        for i, c in enumerate(self.channels):
            stage = Stage()
            if i > 0:
                stage.down = Downsample(current)
                skips.append(current)
            for j in range(config.blocks):
                joined = feature_channels if self._features_join(i, j) else 0
                stage.blocks.append(layer(current + joined, c, 2**i))
                current = c
                skips.append(c)
            self.encoder.append(stage)

        self.middle = nn.ModuleList(
            Layer(current, current, width, config, attends=attends, mixes=spatial_dims == 3)
            for attends in (True, False)
        )

        self.decoder = nn.ModuleList()
        for i, c in reversed(list(enumerate(self.channels))):
            stage = Stage()
            for _ in range(config.blocks + 1):
                stage.blocks.append(layer(current + skips.pop(), c, 2**i))
                current = c
            if i > 0:
                stage.up = Upsample(current)
            self.decoder.append(stage)
        self.head = nn.Sequential(
            group_norm(current, config.groups), nn.SiLU(), zeroed(nn.Conv2d(current, out_channels, 3, padding=1))
        )

    def _check_shape(self, timed: bool) -> None:
        config, channels = self.config, self.channels
        if self.feature_channels and config.stride < FEATURE_STRIDE:
            raise UserError(
                f"multipliers: image features need a level at 1/{FEATURE_STRIDE}, but {len(channels)} levels only "
                f"reach 1/{config.stride}; use at least 4 multipliers"
            )
        if self.feature_channels and config.feature_block > config.blocks:
            raise UserError(
                f"feature_block: expected 1 to {config.blocks}, the blocks per level, got {config.feature_block}"
            )
        if min(channels) < 1:
            raise UserError(
                f"base {config.base} and multipliers {config.multipliers} give a level without channels; use a larger "
                "base"
            )
        if timed and all(group_norm(c, config.groups).num_groups == c for c in channels):
            raise UserError(
                f"levels of {channels} channels are normalized one channel at a time, which hides the step t; make a "
                "level wider, e.g. with a multiplier of 2, or use fewer groups"
            )

    def _features_join(self, level: int, block: int) -> bool:
        """Whether image features are concatenated to the input of this block of the encoder, both counted from 0."""
        return (2**level, block + 1) == (FEATURE_STRIDE, self.config.feature_block)

    def forward(self, x: Tensor, t: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """Map x "b c *space" to "b out *space".

        Args:
            x: Input whose height and width are multiples of the stride.
            t: Steps "b", or None for a network without steps.
            features: Image features "b f h/8 w/8" or "b f d h/8 w/8", or None.
        """
        slices = to_slices(x)
        flat, depth = fold(slices)
        features = None if features is None else fold(to_slices(features))[0]
        time = None if self.time is None else self.time(t)
        if time is not None and depth > 1:
            time = time.repeat_interleave(depth, dim=0)
        out = self.decode(*self.encode(flat, time, features, depth), time, depth=depth)
        return to_slices(unfold(out, slices))

    def encode(
        self, x: Tensor, time: Tensor | None = None, features: Tensor | None = None, depth: int = 1
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the bottleneck and the maps of the skip connections.

        Args:
            x: Images "b c h w", or the slices of volumes as such.
            time: The embedding "b width" of t.
            features: Image features, one row per row of x.
            depth: Slices per volume.
        """
        h = self.stem(x)
        skips = [h]
        for i, stage in enumerate(cast("list[Stage]", self.encoder)):
            if stage.down is not None:
                h = stage.down(h)
                skips.append(h)
            for j, block in enumerate(stage.blocks):
                if features is not None and self.feature_channels and self._features_join(i, j):
                    h = torch.cat([h, features], dim=1)
                h = block(h, time, depth)
                skips.append(h)
        for block in self.middle:
            h = block(h, time, depth)
        return h, skips

    def decode(
        self,
        h: Tensor,
        skips: Sequence[Tensor],
        time: Tensor | None = None,
        modulate: Callable[[int, Tensor], Tensor] | None = None,
        depth: int = 1,
    ) -> Tensor:
        """Map the result of `encode` to "b out h w".

        `modulate` replaces the map after the first layer of each level (0 is the finest). After the last layer the
        normalization of the head would undo a change of scale and shift.
        """
        remaining = list(skips)
        for level, stage in zip(reversed(range(len(self.decoder))), cast("list[Stage]", self.decoder), strict=True):
            for i, block in enumerate(stage.blocks):
                h = block(torch.cat([h, remaining.pop()], dim=1), time, depth)
                if i == 0 and modulate is not None:
                    h = modulate(level, h)
            if stage.up is not None:
                h = stage.up(h)
        out: Tensor = self.head(h)
        return out
