"""PixelCNN: a network over label maps in which a pixel sees only the pixels before it in raster order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalConv(nn.Module):
    """Convolution over the pixels before each pixel in raster order, and the pixel itself unless `strict`.

    The kernel omits the rows below its center, which would all be masked: 4×7 instead of 7×7.
    """

    mask: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, strict: bool):
        super().__init__()
        self.reach = kernel // 2
        self.conv = nn.Conv2d(in_channels, out_channels, (self.reach + 1, kernel), bias=False)
        mask = torch.ones(self.reach + 1, kernel)
        mask[-1, self.reach + (not strict) :] = 0
        self.register_buffer("mask", mask, persistent=False)
        with torch.no_grad():  # He initialization with the unmasked weights as fan-in
            nn.init.normal_(self.conv.weight, std=(2 / max(1.0, in_channels * float(mask.sum()))) ** 0.5)

    @property
    def weight(self) -> Tensor:
        """The kernel with its mask applied."""
        return self.conv.weight * self.mask

    def pad(self, x: Tensor) -> Tensor:
        """Pad x by the border that the kernel reads: zeros left, right and above."""
        return F.pad(x, (self.reach, self.reach, self.reach, 0))

    def forward(self, x: Tensor) -> Tensor:
        """Map x "b in h w" to "b out h w"."""
        return F.conv2d(self.pad(x), self.weight)


class PixelNorm(nn.LayerNorm):
    """Normalization over the channels of each pixel; statistics over pixels would leak later pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x "b c ..."."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class PixelCNN(nn.Module):
    """`layers` causal convolutions, the first of them strict, each with normalization and ReLU."""

    def __init__(self, in_channels: int, width: int, layers: int, kernel: int):
        super().__init__()
        self.convs = nn.ModuleList(
            [CausalConv(width if i else in_channels, width, kernel, strict=i == 0) for i in range(layers)]
        )
        self.norms = nn.ModuleList([PixelNorm(width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Map x "b in h w" to "b width h w"; the features of a pixel depend only on the pixels before it."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return x

    def walk(self, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Visit the pixels of x in raster order and yield (row, column, features "b width" of that pixel).

        The caller writes the pixel's value into x[:, :, row, column] before the next iteration. Each layer keeps its
        results, so that all pixels together cost as much arithmetic as one `forward`.
        """
        b, _, height, width = x.shape
        convs = cast("list[CausalConv]", list(self.convs))
        weights = [conv.weight.flatten(1) for conv in convs]
        # Padded inputs of the layers; those after the first are filled during the walk.
        inputs = [
            conv.pad(x.new_zeros(b, conv.conv.in_channels, height, width)) if i else conv.pad(x)
            for i, conv in enumerate(convs)
        ]
        for row in range(height):
            for column in range(width):
                for i, (conv, norm) in enumerate(zip(convs, self.norms, strict=True)):
                    rows, columns = conv.conv.kernel_size
                    window = inputs[i][:, :, row : row + rows, column : column + columns]
                    features = F.relu(norm(F.linear(window.flatten(1), weights[i])))
                    if i + 1 < len(convs):
                        inputs[i + 1][:, :, row + conv.reach, column + conv.reach] = features
                yield row, column, features
                reach = convs[0].reach
                inputs[0][:, :, row + reach, column + reach] = x[:, :, row, column]
