"""Networks: shapes in, logits out."""

from stochseg.networks.continuous import ContinuousUNet
from stochseg.networks.denoisers import ConcatUNet, Condition, Denoiser, pad_to_multiple
from stochseg.networks.encoders import ENCODERS, HogEncoder, ImageEncoder, make_encoder
from stochseg.networks.tiles import Tiled, blended, check_tiling
from stochseg.networks.two_tower import TwoTower, TwoTowerConfig
from stochseg.networks.unet import UNet, UNetConfig

__all__ = [
    "ENCODERS",
    "ConcatUNet",
    "Condition",
    "ContinuousUNet",
    "Denoiser",
    "HogEncoder",
    "ImageEncoder",
    "Tiled",
    "TwoTower",
    "TwoTowerConfig",
    "UNet",
    "UNetConfig",
    "blended",
    "check_tiling",
    "make_encoder",
    "pad_to_multiple",
]
