"""CCDM: the conditional categorical diffusion model (Zbinden, Doorenbos et al., ICCV 2023)."""

from __future__ import annotations

from typing import ClassVar

from stochseg.models.diffusion import CategoricalDiffusion, DiffusionConfig
from stochseg.models.registry import register
from stochseg.networks import ConcatUNet, EncoderConfig, UNetConfig, begin_encoder, make_encoder
from stochseg.types import DatasetInfo


class CCDMConfig(DiffusionConfig, UNetConfig, EncoderConfig):
    """The U-Net's shape, the diffusion and image features. Defaults: the paper's LIDC 9M model, all T steps."""


@register("ccdm")
class CCDM(CategoricalDiffusion):
    """Diffusion over label maps, conditioned on the image by concatenation and, if asked, frozen features."""

    Config: ClassVar[type[CCDMConfig]] = CCDMConfig
    training_defaults: ClassVar = {"lr": 1e-4, "final_lr": 1e-6, "batch_size": 64, "ema": 0.99995}
    hot = ("denoiser.unet",)

    def __init__(self, info: DatasetInfo, config: CCDMConfig):
        super().__init__(info, config)
        encoder = make_encoder(config, info)
        self.denoiser = ConcatUNet(info.num_classes, info.image_channels, config, encoder)

    def load_pretrained(self) -> None:
        begin_encoder(self.denoiser.encoder, self.config)
