"""Denoisers: x_t, t and an image condition in, logits of x0 out.

What depends on the image alone belongs in `encode`, which runs once an image; `forward` runs once a step
and sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.networks.encoders import ImageEncoder
from stochseg.networks.unet import UNet, UNetConfig


@dataclass(frozen=True)
class Condition:
    """What a denoiser knows of the images: tensors whose first axis is the image, and the size to crop to."""

    tensors: tuple[Tensor, ...]
    size: tuple[int, int]

    def __getitem__(self, rows: Tensor) -> Condition:
        """The condition of these images, one a row: indices may repeat, as for several samples an image."""
        return Condition(tuple(x[rows] for x in self.tensors), self.size)


class Denoiser(nn.Module):
    """The interface that models know."""

    def encode(self, image: Tensor) -> Condition:
        """image: "b c h w" of any size. Once an image."""
        raise NotImplementedError

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """x_t: "b h w" labels; t: "b"; returns logits "b l h w". Once a step and sample."""
        raise NotImplementedError


def pad_to_multiple(x: Tensor, multiple: int, mode: str = "replicate") -> Tensor:
    """Extend "b c h w" at the bottom and right until h and w are multiples."""
    h, w = x.shape[-2:]
    amount = (0, -w % multiple, 0, -h % multiple)
    return F.pad(x, amount, mode=mode) if any(amount) else x


class ConcatUNet(Denoiser):
    """The paper's denoiser: one-hot x_t with the image concatenated, through one U-Net; features at 1/8 if given.

    Sizes that are not a multiple of the stride are padded inside (the image by its edge, the one-hot map by
    zeros, which is no label) and the logits cropped back.
    """

    def __init__(self, num_classes: int, image_channels: int, config: UNetConfig, encoder: ImageEncoder | None = None):
        super().__init__()
        self.num_classes = num_classes
        self.encoder = encoder
        self.unet = UNet(
            num_classes + image_channels,
            num_classes,
            config,
            feature_channels=encoder.channels if encoder else 0,
        )

    def encode(self, image: Tensor) -> Condition:
        padded = pad_to_multiple(image, self.unet.config.stride)
        tensors = (padded,) if self.encoder is None else (padded, self.encoder(padded))
        return Condition(tensors, (image.shape[-2], image.shape[-1]))

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        image, *features = condition.tensors
        onehot = torch.zeros(len(x_t), self.num_classes, *x_t.shape[1:], dtype=image.dtype, device=x_t.device)
        onehot.scatter_(1, x_t[:, None], 1.0)
        onehot = pad_to_multiple(onehot, self.unet.config.stride, mode="constant")
        logits = self.unet(torch.cat([onehot, image], dim=1), t, *features)
        h, w = condition.size
        return logits[..., :h, :w]
