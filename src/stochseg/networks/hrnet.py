"""HRNet for segmentation, on the features of timm (extra `zoo`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.extras import require


class HRNet(nn.Module):
    """HRNetV2 (Wang et al. 2020): the four resolutions of timm's HRNet, resized to 1/4 and concatenated, then a 3×3 and
    a 1×1 convolution."""

    def __init__(self, backbone: str, image_channels: int, num_classes: int, options: Mapping[str, Any]):
        super().__init__()
        timm = require("timm", "zoo", "HRNet")
        self.encoder = timm.create_model(
            backbone,
            in_chans=image_channels,
            features_only=True,
            out_indices=(1, 2, 3, 4),
            pretrained="pretrained_cfg_overlay" in options,
            feature_location="",  # the branches, not the wider maps of the classification head
            **options,
        )
        width = sum(self.encoder.feature_info.channels())
        self.head = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, num_classes, 1),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Map an image "b c h w" to logits "b l h w"."""
        finest, *others = self.encoder(image)
        size = finest.shape[-2:]
        maps = [finest, *(F.interpolate(x, size=size, mode="bilinear", align_corners=False) for x in others)]
        logits = self.head(torch.cat(maps, dim=1))
        return F.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)
