"""The paper's U-Net (Section 3.5), with or without a step input, with or without image features at 1/8."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.networks.blocks import (
    Downsample,
    ResidualBlock,
    SelfAttention,
    TimeEmbedding,
    Upsample,
    group_norm,
    zeroed,
)

FEATURE_STRIDE = 8
"""The paper concatenates image features to the encoder level at 1/8 of the image."""


class UNetConfig(Config):
    """Shape of a U-Net. The defaults are the paper's LIDC network of 9M parameters."""

    base: int = Field(32, ge=1, description="channels of the first level")
    multipliers: tuple[float, ...] = Field(
        (1, 2, 2, 4, 5), min_length=1, description="channels a level, in units of base"
    )
    blocks: int = Field(2, ge=1, description="residual blocks a level in the encoder; the decoder has one more")
    attention: tuple[int, ...] = Field((8, 16, 32), description="down-sampling factors with self-attention")
    head_channels: int = Field(32, ge=1, description="channels of an attention head")
    groups: int = Field(32, ge=1, description="groups of the normalization; fewer keep more of the absolute brightness")

    @property
    def stride(self) -> int:
        """Height and width must be multiples of this."""
        return 2 ** (len(self.multipliers) - 1)


class _Level(nn.Module):
    """A residual block, and self-attention where the level has it."""

    def __init__(self, in_channels: int, out_channels: int, time_width: int | None, config: UNetConfig, attends: bool):
        super().__init__()
        self.block = ResidualBlock(in_channels, out_channels, time_width, config.groups)
        self.attention = SelfAttention(out_channels, config.head_channels, config.groups) if attends else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None) -> Tensor:
        return self.attention(self.block(x, time))


class UNet(nn.Module):
    """Encoder and decoder joined by skip connections after every block and every down-sampling."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        config: UNetConfig,
        *,
        feature_channels: int = 0,
        timed: bool = True,
    ):
        super().__init__()
        self.config = config
        self.feature_channels = feature_channels
        if feature_channels and config.stride < FEATURE_STRIDE:
            raise UserError(
                f"image features join at 1/{FEATURE_STRIDE}, but {len(config.multipliers)} levels only reach "
                f"1/{config.stride}; give at least 4 multipliers"
            )
        width = 4 * config.base if timed else None
        self.time = TimeEmbedding(config.base, width) if width is not None else None
        channels = self.channels = [round(config.base * m) for m in config.multipliers]
        if min(channels) < 1:
            raise UserError(f"base {config.base} times multipliers {config.multipliers} gives a level of no channels")
        if timed and all(group_norm(c, config.groups).num_groups == c for c in channels):
            raise UserError(
                f"levels of {channels} channels are normalized one channel at a time, which hides the step t from the "
                "network; make a level wider, e.g. with a multiplier of 2, or take fewer groups"
            )

        def level(c_in: int, c_out: int, factor: int) -> _Level:
            return _Level(c_in, c_out, width, config, factor in config.attention)

        self.stem = nn.Conv2d(in_channels, channels[0], 3, padding=1)
        self.encoder = nn.ModuleList()
        current, skips = channels[0], [channels[0]]
        for i, c in enumerate(channels):
            stage = nn.ModuleDict({"blocks": nn.ModuleList()})
            if i > 0:
                stage["down"] = Downsample(current)
                skips.append(current)
            if 2**i == FEATURE_STRIDE:
                current += feature_channels
            for _ in range(config.blocks):
                stage["blocks"].append(level(current, c, 2**i))
                current = c
                skips.append(c)
            self.encoder.append(stage)

        self.middle = nn.ModuleList([_Level(current, current, width, config, attends) for attends in (True, False)])

        self.decoder = nn.ModuleList()
        for i, c in reversed(list(enumerate(channels))):
            stage = nn.ModuleDict({"blocks": nn.ModuleList()})
            for _ in range(config.blocks + 1):
                stage["blocks"].append(level(current + skips.pop(), c, 2**i))
                current = c
            if i > 0:
                stage["up"] = Upsample(current)
            self.decoder.append(stage)
        self.head = nn.Sequential(
            group_norm(current, config.groups), nn.SiLU(), zeroed(nn.Conv2d(current, out_channels, 3, padding=1))
        )

    def forward(self, x: Tensor, t: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """x: "b c h w", h and w multiples of the stride; t: "b"; features: "b f h/8 w/8". Returns "b out h w"."""
        time = None if self.time is None else self.time(t)
        return self.decode(*self.encode(x, time, features), time)

    def encode(
        self, x: Tensor, time: Tensor | None = None, features: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The bottleneck, and the maps that skip it in the order they were made. time: the embedding "b width"."""
        h = self.stem(x)
        skips = [h]
        for i, stage in enumerate(self.encoder):
            if "down" in stage:
                h = stage["down"](h)
                skips.append(h)
            if self.feature_channels and 2**i == FEATURE_STRIDE:
                h = torch.cat([h, features], dim=1)
            for block in stage["blocks"]:
                h = block(h, time)
                skips.append(h)
        for block in self.middle:
            h = block(h, time)
        return h, skips

    def decode(
        self,
        h: Tensor,
        skips: Sequence[Tensor],
        time: Tensor | None = None,
        modulate: Callable[[int, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """What `encode` gave -> "b out h w".

        modulate: (level, its map after the first block) -> the map to go on with; 0 is the finest. After the last
        block the head's normalization would take a channel's scale and shift away.
        """
        waiting = list(skips)
        for level, stage in zip(reversed(range(len(self.decoder))), self.decoder, strict=True):
            for i, block in enumerate(stage["blocks"]):
                h = block(torch.cat([h, waiting.pop()], dim=1), time)
                if i == 0 and modulate is not None:
                    h = modulate(level, h)
            if "up" in stage:
                h = stage["up"](h)
        return self.head(h)
