"""Two towers: a deep one reads the image, once per image; a light one denoises label maps, once per step and sample.

Both work on a grid of cells of `patch` × `patch` pixels (pixel-unshuffled), where a convolution costs `patch`² times
less and no detail is lost. In a volume every slice passes through the layers for images, and further layers mix the
slices: trained weights for images start a network for volumes, which sees each slice alone at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

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
    SliceMixing,
    TimeEmbedding,
    group_norm,
    zeroed,
)
from stochseg.networks.denoisers import Condition, Denoiser
from stochseg.networks.encoders.base import ImageEncoder
from stochseg.networks.shapes import crop, fold, one_hot, pad_to_multiple, to_slices, unfold

NOTHING: Mapping[int, Any] = MappingProxyType({})

THRESHOLD_RANGE = 2.5
"""Components copied from one map differ in the logits of the foreground, by up to ± this."""


class TowerConfig(Config):
    """Shape of an image tower. The first level is the grid of cells; each further level halves the resolution."""

    patch: int = Field(2, ge=1, description="pixels per side of a grid cell")
    tower: tuple[int, ...] = Field((64, 96, 128), min_length=1, description="channels per level of the image tower")
    tower_blocks: int = Field(2, ge=1, description="residual blocks per level of the image tower")
    groups: int = Field(8, ge=1, description="groups of the normalization")
    head_channels: int = Field(32, ge=1, description="channels per attention head")

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels per cell of each level of the image tower."""
        return tuple(self.patch << level for level in range(len(self.tower)))


class TwoTowerConfig(TowerConfig):
    """Shape of both towers."""

    light: tuple[int, ...] = Field((48, 64, 96), min_length=1, description="channels per level of the denoiser")
    light_blocks: int = Field(1, ge=1, description="residual blocks per level of the denoiser")
    components: int = Field(1, ge=1, description="maps that the head proposes at once, each with a probability")


class Pyramid(nn.Module):
    """U-Net with sums as skip connections and attention at its coarsest level; returns the features of all levels.

    volumes: whether the images are slices of volumes, which are mixed after the blocks of every level.
    """

    def __init__(
        self,
        in_channels: int,
        widths: tuple[int, ...],
        blocks: int,
        time_width: int | None,
        config: TowerConfig,
        volumes: bool,
    ):
        super().__init__()

        def stage(c: int) -> nn.ModuleList:
            return nn.ModuleList([ResidualBlock(c, c, time_width, config.groups) for _ in range(blocks)])

        self.stem = nn.Conv2d(in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList([stage(c) for c in widths])
        self.down = nn.ModuleList([Downsample(a, b) for a, b in pairwise(widths)])
        self.attention = SelfAttention(widths[-1], config.head_channels, config.groups)
        self.middle = ResidualBlock(widths[-1], widths[-1], time_width, config.groups)
        # The convolution precedes the upsampling: a quarter of the work.
        self.up = nn.ModuleList([nn.Conv2d(b, a, 1) for a, b in pairwise(widths)])
        self.up_blocks = nn.ModuleList([stage(c) for c in widths[:-1]])
        mixed = (*widths, *widths[::-1]) if volumes else ()  # on the way down and, from the middle, up
        self.mixing = nn.ModuleList([SliceMixing(c, config.groups) for c in mixed])

    def _mix(self, place: int, h: Tensor, depth: int) -> Tensor:
        return self.mixing[place](h, depth) if self.mixing else h

    def forward(
        self, x: Tensor, time: Tensor | None = None, added: Mapping[int, Tensor] = NOTHING, depth: int = 1
    ) -> list[Tensor]:
        """Map x "b c h w" and the time embedding "b width" to one map per level, finest first; `added` has maps to add
        to the input of levels. depth: slices per volume."""
        h = self.stem(x)
        skips = []
        for i, blocks in enumerate(self.down_blocks):
            if i > 0:
                h = self.down[i - 1](h)
            if i in added:
                h = h + added[i]
            for block in cast(nn.ModuleList, blocks):
                h = block(h, time)
            h = self._mix(i, h, depth)
            skips.append(h)
        h = self._mix(len(skips), self.middle(self.attention(h), time), depth)
        levels = [h]
        for i in reversed(range(len(self.up))):
            h = skips[i] + F.interpolate(self.up[i](h), scale_factor=2.0, mode="nearest")
            for block in cast(nn.ModuleList, self.up_blocks[i]):
                h = block(h, time)
            h = self._mix(len(skips) + len(levels), h, depth)
            levels.append(h)
        return levels[::-1]


class ImageTower(nn.Module):
    """Network from images "b c h w", and features of an encoder, to the maps that the label tower adds to its levels.

    features: channels of the encoder's maps by the level of the tower that has their resolution; volumes: whether it
    takes slices "b d c h w" of volumes, here and in its features and maps.
    """

    def __init__(
        self,
        image_channels: int,
        config: TwoTowerConfig,
        features: Mapping[int, int] = NOTHING,
        *,
        volumes: bool = False,
    ):
        super().__init__()
        self.patch = config.patch
        self.feature_levels = tuple(features)
        self.join = nn.ModuleList([nn.Conv2d(c, config.tower[level], 1) for level, c in features.items()])
        cells = image_channels * config.patch**2
        self.pyramid = Pyramid(cells, config.tower, config.tower_blocks, None, config, volumes)
        self.bridge = nn.ModuleList(
            [
                nn.Sequential(group_norm(a, config.groups), nn.SiLU(), nn.Conv2d(a, b, 1))
                for a, b in zip(config.tower, config.light, strict=False)
            ]
        )

    def forward(self, image: Tensor, *features: Tensor) -> tuple[Tensor, ...]:
        """Return one map per level of the label tower, finest first."""
        flat, depth = fold(image)
        joined = [join(fold(maps)[0]) for join, maps in zip(self.join, features, strict=True)]
        added = dict(zip(self.feature_levels, joined, strict=True))
        levels = self.pyramid(F.pixel_unshuffle(flat, self.patch), None, added, depth)
        return tuple(unfold(bridge(level), image) for bridge, level in zip(self.bridge, levels, strict=False))


class LabelTower(nn.Module):
    """Network from one-hot labels "b l h w", or slices "b d l h w", t "b" and the image tower's maps to a mixture.

    A component is a map of the whole image or volume: its weight depends on all slices. by_rater: the last tensor is no
    map but the vector "b width" of the rater to imitate, zero for any of them, which is added to the embedding of t.
    """

    def __init__(self, num_classes: int, config: TwoTowerConfig, *, volumes: bool = False, by_rater: bool = False):
        super().__init__()
        self.num_classes, self.patch, self.components = num_classes, config.patch, config.components
        self.by_rater = by_rater
        cell, width = config.patch**2, config.light[0]
        self.time = TimeEmbedding(width, 4 * width)
        self.pyramid = Pyramid(num_classes * cell, config.light, config.light_blocks, 4 * width, config, volumes)
        last = zeroed(nn.Conv2d(width, self.components * num_classes * cell, 3, padding=1))
        self.head = nn.Sequential(group_norm(width, config.groups), nn.SiLU(), last)
        if self.components > 1:
            nn.init.normal_(last.weight, std=0.02)  # components that start equal would stay equal
            # The layer of the log-weights; saved models know it by this name.
            self.share = nn.Sequential(nn.SiLU(), zeroed(nn.Linear(config.light[-1], self.components)))
            if by_rater:
                self.rater_share = zeroed(nn.Linear(4 * width, self.components, bias=False))

    @torch.no_grad()
    def copy_head(self, other: LabelTower) -> bool:
        """Start with the components of a tower that has fewer, each several times; return False if shapes do not fit.

        The copies of a component share its weight and have different thresholds, because components that start equal
        would stay equal.
        """
        copies, rest = divmod(self.components, other.components)
        own, theirs = (cast(nn.Conv2d, tower.head[-1]) for tower in (self, other))
        if rest or theirs.weight.shape[1:] != own.weight.shape[1:] or self._cell != other._cell:
            return False
        assert own.bias is not None
        assert theirs.bias is not None
        own.weight.copy_(self._copied(theirs.weight, copies))
        bias = self._copied(theirs.bias, copies).reshape(other.components, copies, self.num_classes, -1)
        end = THRESHOLD_RANGE / other.components
        bias[:, :, 1:] += torch.linspace(-end, end, copies, device=bias.device)[:, None, None]
        own.bias.copy_(bias.flatten())
        if other.components > 1:
            theirs_by_name = dict(other.named_parameters())
            for name, weight in self.named_parameters():
                if name.startswith(("share.", "rater_share.")) and name in theirs_by_name:
                    weight.copy_(theirs_by_name[name].repeat_interleave(copies, 0))
        return True

    @property
    def _cell(self) -> tuple[int, int]:
        return self.num_classes, self.patch

    def _copied(self, x: Tensor, copies: int) -> Tensor:
        """Repeat the rows "m·l·cell …" of each component."""
        components = x.reshape(-1, self.num_classes * self.patch**2, *x.shape[1:])
        return components.repeat_interleave(copies, 0).flatten(0, 1)

    def forward(self, onehot: Tensor, t: Tensor, *added: Tensor) -> tuple[Tensor, Tensor]:
        """Return log_weight "b m" of the components and the logits "b m l *space" of x0 in each."""
        flat, depth = fold(onehot)
        time = self.time(t)
        if self.by_rater:
            *added, rater = added  # type: ignore[assignment]
            time = time + rater
        time = time if depth == 1 else time.repeat_interleave(depth, dim=0)
        maps = {level: fold(each)[0] for level, each in enumerate(added)}
        levels = self.pyramid(F.pixel_unshuffle(flat, self.patch), time, maps, depth)
        out = F.pixel_shuffle(self.head(levels[0]), self.patch)
        logits = unfold(torch.unflatten(out, 1, (self.components, self.num_classes)), onehot)
        if onehot.ndim == 5:
            logits = logits.movedim(1, 3)
        if self.components == 1:
            return torch.zeros_like(t, dtype=torch.float32)[:, None], logits
        deepest = levels[-1].mean((-2, -1))
        if depth > 1:
            deepest = torch.unflatten(deepest, 0, (-1, depth)).mean(1)
        share = self.share(deepest) + self.rater_share(rater) if self.by_rater else self.share(deepest)
        return torch.log_softmax(share.float(), dim=1), logits


class TwoTower(Denoiser):
    """Denoiser of two towers: the image tower runs in `encode`, the label tower in `propose`.

    Sizes that are not a multiple of the stride are padded inside at the bottom and right (the image by its edge, the
    one-hot map by zeros, which are no label) and the logits are cropped.

    Args:
        num_classes: Number of labels.
        image_channels: Channels of the image.
        config: Shape of both towers.
        encoder: Pretrained features, which the image tower adds to its levels of the same resolution; None: no such.
        spatial_dims: 2 for images "b c h w", 3 for volumes "b c d h w".
        by_rater: Whether maps are proposed for a rater, given by a vector of `rater_width` numbers.

    Raises:
        UserError: If the image tower has fewer levels than the label tower, or none of the encoder's resolution.
    """

    def __init__(
        self,
        num_classes: int,
        image_channels: int,
        config: TwoTowerConfig,
        encoder: ImageEncoder | None = None,
        *,
        spatial_dims: int = 2,
        by_rater: bool = False,
    ):
        super().__init__()
        if len(config.tower) < len(config.light):
            raise UserError(
                f"tower: expected at least as many levels as light has, {len(config.light)}, got {len(config.tower)}; "
                "add channels to tower"
            )
        self.num_classes, self.components = num_classes, config.components
        self.config = config
        self.encoder = encoder
        features, volumes = {} if encoder is None else self._levels_of(encoder), spatial_dims == 3
        self.image_tower = ImageTower(image_channels, config, features, volumes=volumes)
        self.label_tower = LabelTower(num_classes, config, volumes=volumes, by_rater=by_rater)
        self.rater_width = 4 * config.light[0] if by_rater else 0
        self.rater: Tensor | None = None  # the vector for which `encode` prepares; None: any rater
        self.guidance = 1.0

    def _levels_of(self, encoder: ImageEncoder) -> dict[int, int]:
        """Channels of the encoder's maps by the level of the image tower at their stride."""
        strides = self.config.strides
        lost = set(encoder.strides) - set(strides)
        if lost:
            raise UserError(
                f"the encoder has maps at the strides {encoder.strides}, the image tower at {strides}; choose patch "
                "and the number of levels in tower such that the latter include the former"
            )
        channels = encoder.level_channels or (encoder.channels,)
        return {strides.index(stride): count for stride, count in zip(encoder.strides, channels, strict=True)}

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of this."""
        return self.config.strides[-1]

    def encode(self, image: Tensor) -> Condition:
        slices = to_slices(pad_to_multiple(image, self.stride))
        features = () if self.encoder is None else self.encoder.levels(fold(slices)[0])
        features = tuple(unfold(maps, slices) for maps in features)
        tensors = self.image_tower(slices, *features)
        if self.rater_width:
            nobody = tensors[0].new_zeros(len(image), self.rater_width)
            tensors = (*tensors, nobody if self.rater is None else nobody + self.rater)
        return Condition(tensors, tuple(image.shape[2:]))

    def for_raters(self, condition: Condition, vectors: Tensor) -> Condition:
        """Return the condition with these rater vectors, "b width", one per row."""
        return Condition((*condition.tensors[:-1], vectors), condition.size)

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        """Propose for the raters of the condition; with guidance w other than 1, between any rater and them:
        logits(any) + w (logits(rater) - logits(any)), and the log-weights likewise."""
        if self.guidance == 1:
            return self._propose(x_t, t, condition)
        anyone = self.for_raters(condition, torch.zeros_like(condition.tensors[-1]))
        pairs = zip(self._propose(x_t, t, anyone), self._propose(x_t, t, condition), strict=True)
        log_weight, logits = (torch.lerp(a, b, self.guidance) for a, b in pairs)
        return torch.log_softmax(log_weight, 1), logits

    def _propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        onehot = one_hot(x_t, self.num_classes, condition.tensors[0].dtype)
        onehot = to_slices(pad_to_multiple(onehot, self.stride, mode="constant"))
        log_weight, logits = self.label_tower(onehot, t, *condition.tensors)
        return log_weight, crop(logits, condition.size)
