"""EfficientNet-Lite0 (Tan and Le 2019; the Lite form has no squeeze-and-excitation and ReLU6 for swish) up to 1/16.

In plain torch; modules carry the names of the published weights without their leading underscores.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

# Kernel, stride, expansion, output channels, blocks, of the stages up to 1/16.
STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3))
TAPS = {4: 40, 10: 112}
"""Last block at 1/8 and at 1/16, and their channels."""


class SameConv(nn.Conv2d):
    """A convolution with the padding of the weights' origin: as much as gives ceil(size / stride), the odd pixel at the
    bottom and right. Other than symmetric padding where the stride is 2."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(in_channels, out_channels, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        bottom, right = (max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[-2:])
        return super().forward(F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2)))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """1×1 up, depthwise, 1×1 down, and the input where the shape is kept."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        width = in_channels * expansion
        self.expands, self.skips = expansion > 1, stride == 1 and in_channels == out_channels
        if self.expands:
            self.expand_conv, self.bn0 = SameConv(in_channels, width, 1), _norm(width)
        self.depthwise_conv, self.bn1 = SameConv(width, width, kernel, stride, groups=width), _norm(width)
        self.project_conv, self.bn2 = SameConv(width, out_channels, 1), _norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        h = F.relu6(self.bn1(self.depthwise_conv(h)))
        h = self.bn2(self.project_conv(h))
        return x + h if self.skips else h


class EfficientNetLite0(nn.Module):
    """Images "b 3 h w" in [-1, 1] -> maps "b 40 h/8 w/8" and "b 112 h/16 w/16" (sizes rounded up)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = SameConv(3, 32, 3, stride=2), _norm(32)
        self.blocks = nn.ModuleList()
        current = 32
        for kernel, stride, expansion, channels, count in STAGES:
            for i in range(count):
                self.blocks.append(Block(current, channels, kernel, stride if i == 0 else 1, expansion))
                current = channels

    def forward(self, x: Tensor) -> list[Tensor]:
        h = F.relu6(self.bn0(self.conv_stem(x)))
        maps = []
        for i, block in enumerate(self.blocks):
            h = block(h)
            if i in TAPS:
                maps.append(h)
        return maps


def own_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors under the names of the modules here, without the deeper stages and the classifier."""
    renamed = {".".join(part.lstrip("_") for part in key.split(".")): value for key, value in weights.items()}
    wanted = EfficientNetLite0().state_dict()
    return {key: renamed[key] for key in wanted if key in renamed}
