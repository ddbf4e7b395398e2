"""Networks: denoisers, U-Nets, image encoders and tiling."""

from stochseg.networks.cell_unet import BackboneConfig, CellUNet, TowerOption, make_backbone
from stochseg.networks.denoisers import ConcatUNet, Condition, ContinuousUNet, Denoiser
from stochseg.networks.encoders.base import EncoderConfig, ImageEncoder, rename_old_tensors
from stochseg.networks.encoders.factory import ENCODERS, load_pretrained_encoder, make_encoder
from stochseg.networks.encoders.hog import HogEncoder
from stochseg.networks.shapes import pad_to_multiple
from stochseg.networks.tiles import Sizes, Tiled, Tiling, blended
from stochseg.networks.two_tower import TowerConfig, TwoTower, TwoTowerConfig
from stochseg.networks.unet import UNet, UNetConfig

__all__ = [
    "ENCODERS",
    "BackboneConfig",
    "CellUNet",
    "ConcatUNet",
    "Condition",
    "ContinuousUNet",
    "Denoiser",
    "EncoderConfig",
    "HogEncoder",
    "ImageEncoder",
    "Sizes",
    "Tiled",
    "Tiling",
    "TowerConfig",
    "TowerOption",
    "TwoTower",
    "TwoTowerConfig",
    "UNet",
    "UNetConfig",
    "blended",
    "load_pretrained_encoder",
    "make_backbone",
    "make_encoder",
    "pad_to_multiple",
    "rename_old_tensors",
]
