"""The U-Net over real-valued maps, for diffusion with Gaussian noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stochseg.networks.denoisers import Condition
from stochseg.networks.shapes import crop, pad_to_multiple
from stochseg.networks.unet import UNet, UNetConfig


class ContinuousUNet(nn.Module):
    """One U-Net over real-valued maps "b m h w", concatenated with the image.

    Args:
        map_channels: Channels m of the maps.
        image_channels: Channels of the image.
        out_channels: Channels of the output.
        config: Shape of the U-Net.
    """

    def __init__(self, map_channels: int, image_channels: int, out_channels: int, config: UNetConfig):
        super().__init__()
        self.unet = UNet(map_channels + image_channels, out_channels, config)

    def encode(self, image: Tensor) -> Condition:
        """Pad an image "b c h w" of any size, once per image."""
        return Condition((pad_to_multiple(image, self.unet.config.stride),), tuple(image.shape[2:]))

    def forward(self, maps: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """Map "b m h w" at steps t "b" to "b out h w"."""
        (image,) = condition.tensors
        padded = pad_to_multiple(maps.to(image.dtype), self.unet.config.stride, mode="constant")
        out: Tensor = self.unet(torch.cat([padded, image], dim=1), t)
        return crop(out, condition.size).float()
