"""CCDM: the conditional categorical diffusion model (Zbinden, Doorenbos et al., ICCV 2023)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from stochseg.models.diffusion import CategoricalDiffusion, DiffusionConfig
from stochseg.models.registry import register
from stochseg.networks import ConcatUNet, UNetConfig, make_encoder
from stochseg.types import DatasetInfo


class CCDMConfig(DiffusionConfig, UNetConfig):
    """The U-Net's shape and the diffusion. Defaults: the paper's LIDC 9M model, all T steps."""

    encoder: str | None = Field(None, description="frozen image features at 1/8, by name")


@register("ccdm")
class CCDM(CategoricalDiffusion):
    """Diffusion over label maps, conditioned on the image by concatenation and, if asked, frozen features."""

    Config: ClassVar[type[CCDMConfig]] = CCDMConfig
    hot = ("denoiser.unet",)

    def __init__(self, info: DatasetInfo, config: CCDMConfig):
        super().__init__(info, config)
        encoder = None if config.encoder is None else make_encoder(config.encoder, info.image_channels)
        self.denoiser = ConcatUNet(info.num_classes, info.image_channels, config, encoder)
