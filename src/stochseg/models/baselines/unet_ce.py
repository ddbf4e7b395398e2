"""The deterministic rival: the same U-Net trained with cross-entropy, one probability map per image.

Idea: the usual segmentation network trained on several raters. It learns the probability of every label at every pixel
and nothing about how pixels belong together.

    loss = E_rater  mean over pixels  -log softmax(f_θ(image))[y]

Samples are the arg-max n times, or independent draws of every pixel (`draw="pixels"`).

Differs from the original: the paper has it on Cityscapes, with one label map per image; here one random rater per step,
as for the other models, and by default the size of the LIDC model (`base=64, multipliers=(1, 1, 2, 2, 4, 4)` is that of
Cityscapes; without the layers that read the time step, 28.7M of its 30M parameters remain).

Cost: one pass per image, for any n.

Published parameters: 30M for Cityscapes.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from stochseg.models.baselines.deterministic import DeterministicConfig, DeterministicSegmenter
from stochseg.models.registry import register
from stochseg.networks import EncoderConfig, UNet, UNetConfig, load_pretrained_encoder, make_encoder, pad_to_multiple
from stochseg.networks.shapes import crop, slice_wise
from stochseg.types import DatasetInfo


class UNetCEConfig(DeterministicConfig, UNetConfig, EncoderConfig):
    """Shape of the U-Net and image features."""


@register("unet-ce")
class UNetCE(DeterministicSegmenter):
    """The paper's U-Net without time steps, trained with cross-entropy."""

    config_type: ClassVar[type[UNetCEConfig]] = UNetCEConfig
    takes_volumes = True
    config: UNetCEConfig
    training_defaults: ClassVar = {"lr": 1e-4, "final_lr": 1e-6, "batch_size": 32}
    accelerated_modules = ("unet",)

    def __init__(self, info: DatasetInfo, config: UNetCEConfig):
        super().__init__(info, config)
        self.encoder = make_encoder(config, info)
        self.unet = UNet(
            info.image_channels,
            info.num_classes,
            config,
            feature_channels=self.encoder.channels if self.encoder else 0,
            timed=False,
            spatial_dims=info.spatial_dims,
        )

    def load_pretrained(self) -> None:
        load_pretrained_encoder(self.encoder, self.config)

    def logits(self, image: Tensor) -> Tensor:
        padded = pad_to_multiple(image, self.config.stride)
        features = None if self.encoder is None else slice_wise(self.encoder, padded)
        return crop(self.unet(padded, features=features), image.shape[2:]).float()
