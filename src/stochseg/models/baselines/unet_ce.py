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

from stochseg.errors import UserError
from stochseg.models.baselines.deterministic import DeterministicConfig, DeterministicSegmenter
from stochseg.models.registry import register
from stochseg.networks import (
    BackboneConfig,
    CellUNet,
    EncoderConfig,
    UNet,
    load_pretrained_encoder,
    make_encoder,
    pad_to_multiple,
)
from stochseg.networks.shapes import crop, slice_wise
from stochseg.types import DatasetInfo


class UNetCEConfig(DeterministicConfig, BackboneConfig, EncoderConfig):
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
        channels, labels, dims = info.image_channels, info.num_classes, info.spatial_dims
        self.unet: UNet | CellUNet
        if config.image_tower is None:
            features = self.encoder.channels if self.encoder else 0
            self.unet = UNet(channels, labels, config, feature_channels=features, timed=False, spatial_dims=dims)
        elif self.encoder is None:
            self.unet = CellUNet(channels, labels, config.image_tower, spatial_dims=dims)
        else:
            raise UserError("image_tower: expected no encoder with it, got one; set encoder=null or image_tower=null")

    def load_pretrained(self) -> None:
        load_pretrained_encoder(self.encoder, self.config)

    def logits(self, image: Tensor) -> Tensor:
        padded = pad_to_multiple(image, self.config.stride)
        features = {} if self.encoder is None else {"features": slice_wise(self.encoder, padded)}
        return crop(self.unet(padded, **features), image.shape[2:]).float()
