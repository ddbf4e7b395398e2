"""Two towers: a deep one reads the image once, a light one denoises label maps once a step and sample.

Both work on a grid of cells of `patch` x `patch` pixels (pixel-unshuffled), where a convolution costs `patch`^2 times
less and no detail is lost.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.networks.blocks import (
    Downsample,
    ResidualBlock,
    SelfAttention,
    TimeEmbedding,
    group_norm,
    zeroed,
)
from stochseg.networks.denoisers import Condition, Denoiser
from stochseg.networks.shapes import one_hot, pad_to_multiple


class TwoTowerConfig(Config):
    """Shape of both towers. A level has half the resolution of the one before; the first is the grid of cells."""

    patch: int = Field(2, ge=1, description="pixels a side of a grid cell")
    tower: tuple[int, ...] = Field((64, 96, 128), min_length=1, description="channels a level of the image tower")
    tower_blocks: int = Field(2, ge=1, description="residual blocks a level of the image tower")
    light: tuple[int, ...] = Field((48, 64, 96), min_length=1, description="channels a level of the denoiser")
    light_blocks: int = Field(1, ge=1, description="residual blocks a level of the denoiser")
    groups: int = Field(8, ge=1, description="groups of the normalization")
    head_channels: int = Field(32, ge=1, description="channels of an attention head")
    components: int = Field(1, ge=1, description="maps that the head proposes at once, with a probability each")


class Pyramid(nn.Module):
    """A U-Net with sums for skip connections, attention at its coarsest level, and the features of all its levels."""

    def __init__(
        self,
        in_channels: int,
        widths: tuple[int, ...],
        blocks: int,
        time_width: int | None,
        groups: int,
        head_channels: int,
    ):
        super().__init__()

        def stage(c: int) -> nn.ModuleList:
            return nn.ModuleList([ResidualBlock(c, c, time_width, groups) for _ in range(blocks)])

        self.stem = nn.Conv2d(in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList([stage(c) for c in widths])
        self.down = nn.ModuleList([Downsample(a, b) for a, b in pairwise(widths)])
        self.attention = SelfAttention(widths[-1], head_channels, groups)
        self.middle = ResidualBlock(widths[-1], widths[-1], time_width, groups)
        # The convolution comes before the resampling: a quarter of the work.
        self.up = nn.ModuleList([nn.Conv2d(b, a, 1) for a, b in pairwise(widths)])
        self.up_blocks = nn.ModuleList([stage(c) for c in widths[:-1]])

    def forward(self, x: Tensor, time: Tensor | None = None, added: tuple[Tensor, ...] = ()) -> list[Tensor]:
        """x: "b c h w"; time: "b width"; added: a map a level, of its shape. Returns a map a level, finest first."""
        h = self.stem(x)
        skips = []
        for i, blocks in enumerate(self.down_blocks):
            if i > 0:
                h = self.down[i - 1](h)
            if added:
                h = h + added[i]
            for block in blocks:
                h = block(h, time)
            skips.append(h)
        h = self.middle(self.attention(h), time)
        levels = [h]
        for i in reversed(range(len(self.up))):
            h = skips[i] + F.interpolate(self.up[i](h), scale_factor=2.0, mode="nearest")
            for block in self.up_blocks[i]:
                h = block(h, time)
            levels.append(h)
        return levels[::-1]


class ImageTower(nn.Module):
    """Images "b c h w" -> what the label tower adds to each of its levels."""

    def __init__(self, image_channels: int, config: TwoTowerConfig):
        super().__init__()
        self.patch = config.patch
        self.pyramid = Pyramid(
            image_channels * config.patch**2,
            config.tower,
            config.tower_blocks,
            None,
            config.groups,
            config.head_channels,
        )
        self.bridge = nn.ModuleList(
            [
                nn.Sequential(group_norm(a, config.groups), nn.SiLU(), nn.Conv2d(a, b, 1))
                for a, b in zip(config.tower, config.light, strict=False)
            ]
        )

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        levels = self.pyramid(F.pixel_unshuffle(image, self.patch))
        return tuple(bridge(level) for bridge, level in zip(self.bridge, levels, strict=False))


class LabelTower(nn.Module):
    """One-hot labels "b l h w", t "b" and the image's share of each level -> a mixture of maps."""

    def __init__(self, num_classes: int, config: TwoTowerConfig):
        super().__init__()
        self.num_classes, self.patch, self.components = num_classes, config.patch, config.components
        cell, width = config.patch**2, config.light[0]
        self.time = TimeEmbedding(width, 4 * width)
        self.pyramid = Pyramid(
            num_classes * cell, config.light, config.light_blocks, 4 * width, config.groups, config.head_channels
        )
        last = zeroed(nn.Conv2d(width, self.components * num_classes * cell, 3, padding=1))
        self.head = nn.Sequential(group_norm(width, config.groups), nn.SiLU(), last)
        if self.components > 1:
            nn.init.normal_(last.weight, std=0.02)  # components that begin alike would stay alike
            self.share = nn.Sequential(nn.SiLU(), zeroed(nn.Linear(config.light[-1], self.components)))

    @torch.no_grad()
    def grow(self, single: LabelTower) -> bool:
        """Begin a head of several components with one of a single map, if it fits. They repeat it with another
        threshold each: components that begin alike would stay alike."""
        own, theirs = self.head[-1], single.head[-1]
        weight = theirs.weight.repeat(self.components, 1, 1, 1)
        if weight.shape != own.weight.shape:
            return False
        own.weight.copy_(weight)
        bias = theirs.bias.repeat(self.components).unflatten(0, (self.components, self.num_classes, -1))
        bias[:, 1:] += torch.linspace(-2.5, 2.5, self.components, device=bias.device)[:, None, None]
        own.bias.copy_(bias.flatten())
        return True

    def forward(self, onehot: Tensor, t: Tensor, *added: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the components "b m" and the logits of x0 under each, "b m l h w"."""
        levels = self.pyramid(F.pixel_unshuffle(onehot, self.patch), self.time(t), added)
        logits = F.pixel_shuffle(self.head(levels[0]), self.patch).unflatten(1, (self.components, self.num_classes))
        if self.components == 1:
            return torch.zeros_like(t, dtype=torch.float32)[:, None], logits
        return torch.log_softmax(self.share(levels[-1].mean((-2, -1))).float(), dim=1), logits


class TwoTower(Denoiser):
    """The image tower runs in `encode`, the label tower in `forward`.

    Sizes that are not a multiple of the stride are padded inside at the bottom and right (the image by its edge, the
    one-hot map by zeros, which is no label) and the logits cropped back.
    """

    def __init__(self, num_classes: int, image_channels: int, config: TwoTowerConfig):
        super().__init__()
        if len(config.tower) < len(config.light):
            raise UserError(
                f"the image tower has {len(config.tower)} level(s) and the denoiser {len(config.light)}; "
                "give `tower` at least as many channels as `light`"
            )
        self.num_classes = num_classes
        self.config = config
        self.image_tower = ImageTower(image_channels, config)
        self.label_tower = LabelTower(num_classes, config)

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of this."""
        return self.config.patch * 2 ** (len(self.config.tower) - 1)

    def encode(self, image: Tensor) -> Condition:
        return Condition(self.image_tower(pad_to_multiple(image, self.stride)), (image.shape[-2], image.shape[-1]))

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        onehot = one_hot(x_t, self.num_classes, condition.tensors[0].dtype)
        onehot = pad_to_multiple(onehot, self.stride, mode="constant")
        log_share, logits = self.label_tower(onehot, t, *condition.tensors)
        h, w = condition.size
        return log_share, logits[..., :h, :w]
