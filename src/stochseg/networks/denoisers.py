"""Denoisers: x_t, t and an image condition in, logits of x0 out.

What depends on the image alone belongs in `encode`, which runs once an image; `forward` runs once a step
and sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stochseg.networks.encoders import ImageEncoder
from stochseg.networks.shapes import one_hot, pad_to_multiple
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

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        """x_t: "b h w" labels; t: "b". p0 as a mixture of m products over pixels: log-probabilities of the components
        "b m" and the logits of x0 under each, "b m l h w". Most denoisers have m = 1. Once a step and sample."""
        raise NotImplementedError

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """Logits of each pixel's own p0, "b l h w"."""
        log_share, logits = self.propose(x_t, t, condition)
        if logits.shape[1] == 1:
            return logits[:, 0]
        return (log_share[:, :, None, None, None] + torch.log_softmax(logits, dim=2)).logsumexp(1)


class ConcatUNet(Denoiser):
    """The paper's denoiser: one-hot x_t with the image concatenated, through one U-Net; features at 1/8 if given.

    Sizes that are not a multiple of the stride are padded inside at the bottom and right (the image by its edge, the
    one-hot map by zeros, which is no label) and the logits cropped back.
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

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        image, *features = condition.tensors
        onehot = pad_to_multiple(one_hot(x_t, self.num_classes, image.dtype), self.unet.config.stride, mode="constant")
        logits = self.unet(torch.cat([onehot, image], dim=1), t, *features)
        h, w = condition.size
        return torch.zeros(len(x_t), 1, device=x_t.device), logits[:, None, :, :h, :w]
