"""Image encoders with fixed random weights, and images for them."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.networks import EncoderConfig, ImageEncoder, load_pretrained_encoder, make_encoder
from stochseg.types import DatasetInfo, Normalization

VIT, CNN = "timm:test_vit", "timm:test_resnet"
UNET = {"base": 8, "multipliers": (1, 1, 1, 2), "blocks": 1, "attention": ()}
"""The smallest U-Net that takes features at 1/8."""


def info(channels: int = 3, **normalization) -> DatasetInfo:
    return DatasetInfo(num_classes=2, image_channels=channels, normalization=Normalization(**normalization))


def encoder(name: str, channels: int = 3, weights: str | None = "random", data=None, **options) -> ImageEncoder:
    """An encoder as `create` makes it."""
    torch.manual_seed(0)
    config = EncoderConfig(encoder=name, encoder_weights=weights, **options)
    made = make_encoder(config, data or info(channels))
    assert made is not None
    load_pretrained_encoder(made, config)
    return made


def image(channels: int = 3, h: int = 32, w: int = 48, b: int = 2) -> Tensor:
    return torch.rand(b, channels, h, w, generator=torch.Generator().manual_seed(0)) * 2 - 1
