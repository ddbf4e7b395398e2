"""Encoders that were trained on photographs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.errors import UserError
from stochseg.networks.encoders.base import EncoderConfig, ImageEncoder
from stochseg.networks.unet import FEATURE_STRIDE
from stochseg.types import DatasetInfo

DOWNLOAD, RANDOM = "download", "random"


class PretrainedEncoder(ImageEncoder):
    """Encoder that normalizes images as its network was trained: three channels, 0..1, then its mean and deviation.

    The model's own normalization is undone, `encoder_range` becomes 0..1, and a gray image fills all three channels.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__()
        if info.image_channels not in (1, 3):
            raise UserError(
                f"encoder {config.encoder!r}: expected gray or RGB images, got {info.image_channels} channels; "
                "use the encoder hog or none"
            )
        black, white = config.encoder_range
        if not black < white:
            raise UserError(f"encoder_range: expected black below white, got {config.encoder_range}")
        self.name = config.encoder
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (info.normalization.mean, info.normalization.std))
        self._to_unit = (std / (white - black)).expand(3), ((mean - black) / (white - black)).expand(3)

    def set_normalization(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Set the mean and deviation that the network expects of images in 0..1. Call once, in the constructor."""
        own_mean, own_std = (torch.tensor(x, dtype=torch.float64).expand(3) for x in (mean, std))
        gain, offset = self._to_unit
        self.register_buffer("scale", (gain / own_std).float().view(3, 1, 1), persistent=False)
        self.register_buffer("shift", ((offset - own_mean) / own_std).float().view(3, 1, 1), persistent=False)

    def renormalize(self, image: Tensor) -> Tensor:
        """Turn an image "b c h w", normalized for the model, into "b 3 h w", normalized for the encoder."""
        return image.expand(-1, 3, -1, -1) * self.scale + self.shift

    def resize_to_eighth(self, features: Tensor, image: Tensor) -> Tensor:
        """Resize features that cover the image to 1/8 of its size."""
        size = tuple(n // FEATURE_STRIDE for n in image.shape[-2:])
        if features.shape[-2:] == size:
            return features
        return F.interpolate(features, size=size, mode="bilinear", align_corners=False)
