"""Building blocks of the U-Nets: normalization, residual block, self-attention, resampling, time embedding."""

from __future__ import annotations

import math
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class GroupNorm(nn.GroupNorm):
    """GroupNorm that accepts groups of a single value, as at the deepest level of a tiny image; they become the bias.

    `nn.GroupNorm` refuses them to guard batch statistics in training, which does not apply here.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def group_norm(channels: int, groups: int = 32) -> GroupNorm:
    """Return a GroupNorm of `groups` groups (the paper's 32); narrower layers have fewer, of at least 4 channels.

    A group of one channel removes everything that is constant over the pixels, and with it the step t, which enters a
    block as one constant per channel: a network of such groups alone could not depend on t.
    """
    groups = groups if channels >= max(32, groups) else max(1, min(groups, channels // 4))
    return GroupNorm(math.gcd(groups, channels), channels)


def zeroed(module: M) -> M:
    """Set all parameters of a module to zero, so that a residual branch starts as the identity, and return it."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of the step t, then a two-layer perceptron of width `width`."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.channels = channels
        self.perceptron = nn.Sequential(nn.Linear(channels, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """Embed t "b" as "b width"."""
        half = self.channels // 2
        frequency = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
        angle = t[:, None].float() * frequency
        first = cast(nn.Linear, self.perceptron[0])
        position = torch.cat([angle.cos(), angle.sin()], dim=1).to(first.weight.dtype)
        out: Tensor = self.perceptron(F.pad(position, (0, self.channels - 2 * half)))
        return out


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, plus time, norm, SiLU, convolution, plus the input.

    Note: the paper says that the step is concatenated to the feature maps. Its parameter counts are those of this
    block, which adds a linear map of the time embedding after the first convolution.
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
        """Map x "b c h w" and the time embedding "b width", or None for a network without steps, to "b out h w"."""
        h = self.first(x)
        if self.time is not None:
            h = h + self.time(time)[:, :, None, None]
        out: Tensor = self.skip(x) + self.second(h)
        return out


class SelfAttention(nn.Module):
    """Multi-head self-attention over all pixels, about `head_channels` channels per head, plus the input."""

    def __init__(self, channels: int, head_channels: int, groups: int = 32):
        super().__init__()
        # The number of heads divides the channels.
        self.heads = next(n for n in range(max(1, channels // head_channels), 0, -1) if channels % n == 0)
        self.norm = group_norm(channels, groups)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map x "b c h w" to the same shape."""
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        # Contiguous inputs: otherwise torch falls back to the kernel that stores all h·w × h·w scores.
        q, k, v = qkv.contiguous().unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        out: Tensor = x + self.out(mixed)
        return out


class SliceMixing(nn.Module):
    """Add to every slice of volumes what it learns from itself and its two neighbors; at the start, nothing.

    A 1×1 convolution gives each slice three maps, for itself and for the slices before and after it: a convolution of
    kernel (3, 1, 1) over "b c d h w", without moving axes. The first and the last slice are their own neighbors at the
    ends, so that a volume of equal slices is read as one of them.
    """

    def __init__(self, channels: int, groups: int):
        super().__init__()
        self.norm = group_norm(channels, groups)
        self.conv = zeroed(nn.Conv2d(channels, 3 * channels, 1))

    def forward(self, x: Tensor, depth: int) -> Tensor:
        """Map the slices "(b d) c h w" of volumes of `depth` slices each to the same shape."""
        maps: Tensor = self.conv(F.silu(self.norm(x)))
        before, own, after = torch.unflatten(maps, 0, (-1, depth)).chunk(3, dim=2)
        from_previous = torch.cat([after[:, :1], after[:, :-1]], dim=1)
        from_next = torch.cat([before[:, 1:], before[:, -1:]], dim=1)
        return x + (own + from_previous + from_next).flatten(0, 1)


class Downsample(nn.Conv2d):
    """Strided convolution to half the resolution."""

    def __init__(self, in_channels: int, out_channels: int | None = None):
        super().__init__(in_channels, out_channels or in_channels, 3, stride=2, padding=1)


class Upsample(nn.Module):
    """Nearest-neighbor resampling to twice the resolution, then a convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map x "b c h w" to "b c 2h 2w"."""
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out
