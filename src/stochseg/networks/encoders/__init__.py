"""Frozen image features that condition a network: computed once per image, joined to the U-Net at 1/8 resolution."""

from stochseg.networks.encoders.base import EncoderConfig, ImageEncoder, rename_old_tensors
from stochseg.networks.encoders.factory import ENCODERS, PRETRAINED, load_pretrained_encoder, make_encoder
from stochseg.networks.encoders.hog import HogEncoder
from stochseg.networks.encoders.timm_encoder import TimmEncoder

__all__ = [
    "ENCODERS",
    "PRETRAINED",
    "EncoderConfig",
    "HogEncoder",
    "ImageEncoder",
    "TimmEncoder",
    "load_pretrained_encoder",
    "make_encoder",
    "rename_old_tensors",
]
