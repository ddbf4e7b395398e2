"""Image encoders by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stochseg.errors import unknown_name
from stochseg.networks.encoders.base import EncoderConfig, ImageEncoder
from stochseg.networks.encoders.efficientnet_lite import EfficientNetLite
from stochseg.networks.encoders.feature_cache import FeatureCache
from stochseg.networks.encoders.hog import HogEncoder
from stochseg.networks.encoders.pretrained import PretrainedEncoder
from stochseg.networks.encoders.timm_encoder import PREFIX, TimmEncoder
from stochseg.types import DatasetInfo

ENCODERS: dict[str, Callable[[int], ImageEncoder]] = {"hog": HogEncoder}
"""Encoders without weights, built from the number of image channels."""

PRETRAINED: dict[str, type[PretrainedEncoder]] = {"efficientnet-lite0": EfficientNetLite}
"""Encoders with pretrained weights; "timm:NAME" adds all models of timm."""


def make_encoder(config: EncoderConfig, info: DatasetInfo) -> ImageEncoder | None:
    """Build the encoder that the config names, frozen and without pretrained weights.

    Args:
        config: The name and options of the encoder.
        info: The data whose images it reads.

    Returns:
        The encoder, or None if the config names none.

    Raises:
        UserError: If the name is unknown or the encoder cannot read such images.

    Example:
        >>> from stochseg.networks import EncoderConfig, make_encoder
        >>> encoder = make_encoder(EncoderConfig(encoder="hog"), DatasetInfo(num_classes=2, image_channels=1))
        >>> encoder.channels
        11
    """
    name = config.encoder
    if name is None:
        return None
    encoder: ImageEncoder
    if name in ENCODERS:
        encoder = ENCODERS[name](info.image_channels)
    elif name.startswith(PREFIX):
        encoder = TimmEncoder(info, config)
    elif name in PRETRAINED:
        encoder = PRETRAINED[name](info, config)
    else:
        raise unknown_name("image encoder", name, [*ENCODERS, *PRETRAINED, f"{PREFIX}NAME"])
    if config.encoder_cache is not None:
        encoder.cache = FeatureCache(Path(config.encoder_cache))
    return encoder.requires_grad_(False).eval()


def load_pretrained_encoder(encoder: ImageEncoder | None, config: EncoderConfig) -> None:
    """Prepare the encoder of a new model: load its pretrained weights and create the folder of its cache.

    Args:
        encoder: What `make_encoder` returned.
        config: The config it was built from.

    Raises:
        UserError: If the weights are missing or belong to another network.
    """
    if encoder is None:
        return
    encoder.load_pretrained(config.encoder_weights)
    encoder.requires_grad_(False).eval()
    if encoder.cache is not None:
        encoder.cache.folder.mkdir(parents=True, exist_ok=True)
