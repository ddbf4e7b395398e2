"""The pieces of the U-Net family: normalization, residual block, self-attention, resampling, time embedding."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupNorm(nn.GroupNorm):
    """GroupNorm that also takes groups of a single value, as the deepest level of a tiny image has: they become the
    bias. `nn.GroupNorm` refuses them, which is a guard for batch statistics in training that means nothing here."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def group_norm(channels: int, groups: int = 32) -> GroupNorm:
    """GroupNorm with the paper's 32 groups, or another number; a layer narrower than that has fewer groups, of at
    least 4 channels.

    A group of one channel takes out whatever is constant over the pixels, and so the step t, which enters a block
    as a constant a channel: a network made of such groups alone could not know t.
    """
    groups = groups if channels >= max(32, groups) else max(1, min(groups, channels // 4))
    return GroupNorm(math.gcd(groups, channels), channels)


def zeroed(module: nn.Module) -> nn.Module:
    """The module with its parameters set to zero: a residual branch that begins as nothing."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class TimeEmbedding(nn.Module):
    """Sinusoidal position of the step t, then a two-layer perceptron of width `width`."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.channels = channels
        self.perceptron = nn.Sequential(nn.Linear(channels, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """t: "b" -> "b width"."""
        half = self.channels // 2
        frequency = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
        angle = t[:, None].float() * frequency
        position = torch.cat([angle.cos(), angle.sin()], dim=1).to(self.perceptron[0].weight.dtype)
        return self.perceptron(F.pad(position, (0, self.channels - 2 * half)))


class ResidualBlock(nn.Module):
    """norm, SiLU, conv, (+ time), norm, SiLU, conv, + the input.

    Note: the paper says the step is concatenated to the feature maps; its parameter counts are those of the
    form built here, where a linear map of the time embedding is added after the first convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, time_width: int | None, groups: int = 32):
        super().__init__()
        self.first = nn.Sequential(
            group_norm(in_channels, groups), nn.SiLU(), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        )
        self.time = None if time_width is None else nn.Sequential(nn.SiLU(), nn.Linear(time_width, out_channels))
        self.second = nn.Sequential(
            group_norm(out_channels, groups), nn.SiLU(), zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        )
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor | None) -> Tensor:
        """x: "b c h w"; time: "b width", or None for a network without steps."""
        h = self.first(x)
        if self.time is not None:
            h = h + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(h)


class SelfAttention(nn.Module):
    """Multi-head self-attention over all pixels, heads of `head_channels`, with a residual connection."""

    def __init__(self, channels: int, head_channels: int, groups: int = 32):
        super().__init__()
        # About `head_channels` each, and all of them equal.
        self.heads = next(n for n in range(max(1, channels // head_channels), 0, -1) if channels % n == 0)
        self.norm = group_norm(channels, groups)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: "b c h w"."""
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        # Contiguous: otherwise torch takes the way that writes out all h·w × h·w scores.
        q, k, v = qkv.contiguous().unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(mixed)


class Downsample(nn.Conv2d):
    """Half the resolution by a strided convolution."""

    def __init__(self, in_channels: int, out_channels: int | None = None):
        super().__init__(in_channels, out_channels or in_channels, 3, stride=2, padding=1)


class Upsample(nn.Module):
    """Twice the resolution: nearest neighbor, then a convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
