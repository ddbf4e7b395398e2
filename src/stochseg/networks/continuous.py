"""The U-Net over real-valued maps, for diffusion with Gaussian noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stochseg.networks.denoisers import Condition
from stochseg.networks.shapes import pad_to_multiple
from stochseg.networks.unet import UNet, UNetConfig


class ContinuousUNet(nn.Module):
    """Maps "b m h w" with the image concatenated, through one U-Net. The image is padded once, in `encode`."""

    def __init__(self, map_channels: int, image_channels: int, out_channels: int, config: UNetConfig):
        super().__init__()
        self.unet = UNet(map_channels + image_channels, out_channels, config)

    def encode(self, image: Tensor) -> Condition:
        """image: "b c h w" of any size."""
        padded = pad_to_multiple(image, self.unet.config.stride)
        return Condition((padded,), (image.shape[-2], image.shape[-1]))

    def forward(self, maps: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """Returns "b out h w"."""
        (image,) = condition.tensors
        padded = pad_to_multiple(maps.to(image.dtype), self.unet.config.stride, mode="constant")
        h, w = condition.size
        return self.unet(torch.cat([padded, image], dim=1), t)[..., :h, :w].float()
