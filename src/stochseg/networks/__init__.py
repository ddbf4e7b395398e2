"""Networks: denoisers, U-Nets, image encoders and tiling."""

from stochseg.networks.continuous import ContinuousUNet
from stochseg.networks.denoisers import ConcatUNet, Condition, Denoiser
from stochseg.networks.encoders import (
    ENCODERS,
    PRETRAINED,
    EncoderConfig,
    HogEncoder,
    ImageEncoder,
    TimmEncoder,
    load_pretrained_encoder,
    make_encoder,
    rename_old_tensors,
)
from stochseg.networks.shapes import pad_to_multiple
from stochseg.networks.tiles import Tiled, blended, check_tiling
from stochseg.networks.two_tower import TwoTower, TwoTowerConfig
from stochseg.networks.unet import UNet, UNetConfig

__all__ = [
    "ENCODERS",
    "PRETRAINED",
    "ConcatUNet",
    "Condition",
    "ContinuousUNet",
    "Denoiser",
    "EncoderConfig",
    "HogEncoder",
    "ImageEncoder",
    "Tiled",
    "TimmEncoder",
    "TwoTower",
    "TwoTowerConfig",
    "UNet",
    "UNetConfig",
    "blended",
    "check_tiling",
    "load_pretrained_encoder",
    "make_encoder",
    "pad_to_multiple",
    "rename_old_tensors",
]
