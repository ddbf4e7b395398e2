"""CCDM: the conditional categorical diffusion model (Zbinden, Doorenbos et al., ICCV 2023).

Idea: diffuse a label map as a map of categories. At each of T steps every pixel keeps its label or gets a random one
of all L, until nothing of the map is left. A U-Net that sees the image and the noisy map predicts the probabilities of
the clean labels. They determine the distribution of a less noisy map, and a sample walks from pure noise back to t = 0,
step by step.

    q(x_t | x_{t-1}) = α_t [x_t = x_{t-1}] + (1 - α_t) / L   at every pixel
    p(x_{t-1} | x_t) = Σ_x0 q(x_{t-1} | x_t, x0) f_θ(x_t, t, image)[x0]
    loss = E_t KL( q(x_{t-1} | x_t, x0) ‖ p(x_{t-1} | x_t) )

Differs from the original: one table of α_bar with α_bar_0 = 1 serves everything; skipped steps are exact jumps to any
earlier time, whereas the released code uses the kernel of a single step and loses the frequencies; void pixels are
noise to the network and carry no label. paper_to_code.md lists every equation.

Cost: one U-Net pass per step and sample, T = 250 of them by default.

Published parameters: 9M and 41M.
"""

from __future__ import annotations

from typing import ClassVar

from stochseg.models.categorical_diffusion import CategoricalDiffusion, CategoricalDiffusionConfig
from stochseg.models.registry import register
from stochseg.networks import ConcatUNet, EncoderConfig, UNetConfig, load_pretrained_encoder, make_encoder
from stochseg.types import DatasetInfo


class CCDMConfig(CategoricalDiffusionConfig, UNetConfig, EncoderConfig):
    """Shape of the U-Net, the diffusion and image features. Defaults: the paper's LIDC 9M model, all T steps."""


@register("ccdm")
class CCDM(CategoricalDiffusion):
    """Diffusion over label maps, conditioned on the image by concatenation and, optionally, frozen features."""

    config_type: ClassVar[type[CCDMConfig]] = CCDMConfig
    takes_volumes = True
    training_defaults: ClassVar = {
        "lr": 1e-4,
        "final_lr": 1e-6,
        "batch_size": 64,
        "ema": 0.99995,
        "clip": None,
    }
    accelerated_modules = ("denoiser.unet",)
    config: CCDMConfig
    denoiser: ConcatUNet

    def __init__(self, info: DatasetInfo, config: CCDMConfig):
        super().__init__(info, config)
        encoder = make_encoder(config, info)
        shape = (info.num_classes, info.image_channels, config)
        self.denoiser = ConcatUNet(*shape, encoder, spatial_dims=info.spatial_dims)

    def load_pretrained(self) -> None:
        load_pretrained_encoder(self.denoiser.encoder, self.config)
