"""PixelCNN: a network over label maps in which a pixel sees only those before it in raster order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalConv(nn.Module):
    """A convolution over the pixels before its own in raster order; over its own as well unless `strict`.

    The rows below the center would all be masked, so the kernel does not have them: 4×7 stands for 7×7.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, strict: bool):
        super().__init__()
        self.reach = kernel // 2
        self.conv = nn.Conv2d(in_channels, out_channels, (self.reach + 1, kernel), bias=False)
        mask = torch.ones(self.reach + 1, kernel)
        mask[-1, self.reach + (not strict) :] = 0
        self.register_buffer("mask", mask, persistent=False)
        with torch.no_grad():  # as if the fan-in were the weights that count, for which a ReLU wants variance 2
            nn.init.normal_(self.conv.weight, std=(2 / max(1.0, in_channels * float(mask.sum()))) ** 0.5)

    @property
    def weight(self) -> Tensor:
        return self.conv.weight * self.mask

    def pad(self, x: Tensor) -> Tensor:
        """x with the border that the kernel reads: zeros left, right and above."""
        return F.pad(x, (self.reach, self.reach, self.reach, 0))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.pad(x), self.weight)


class PixelNorm(nn.LayerNorm):
    """Normalization over the channels of each pixel: statistics over pixels would let the future leak."""

    def forward(self, x: Tensor) -> Tensor:
        """x: "b c ..."."""
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
        """x: "b in h w" -> "b width h w"; the features of a pixel depend on the pixels before it alone."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return x

    def walk(self, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Go through the pixels of x in raster order: (row, column, features "b width" of that pixel).

        Whoever walks writes the pixel's value into x[:, :, row, column] before the next turn. Each layer keeps what it
        has computed, so that all pixels together cost as much arithmetic as one `forward`.
        """
        b, _, height, width = x.shape
        weights = [conv.weight.flatten(1) for conv in self.convs]
        # Inputs of the layers with their borders; beyond the first they are filled in as the walk goes.
        inputs = [
            conv.pad(x.new_zeros(b, conv.conv.in_channels, height, width)) if i else conv.pad(x)
            for i, conv in enumerate(self.convs)
        ]
        for row in range(height):
            for column in range(width):
                for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                    rows, columns = conv.conv.kernel_size
                    window = inputs[i][:, :, row : row + rows, column : column + columns]
                    features = F.relu(norm(F.linear(window.flatten(1), weights[i])))
                    if i + 1 < len(self.convs):
                        inputs[i + 1][:, :, row + conv.reach, column + conv.reach] = features
                yield row, column, features
                reach = self.convs[0].reach
                inputs[0][:, :, row + reach, column + reach] = x[:, :, row, column]
