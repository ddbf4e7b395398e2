"""The deterministic rival: the same U-Net trained with cross-entropy, one label map an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stochseg.core import SeededNoise
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_raters
from stochseg.models.registry import register
from stochseg.networks import UNet, UNetConfig, blended, check_tiling, make_encoder, pad_to_multiple
from stochseg.types import DatasetInfo, Samples


class UNetCEConfig(UNetConfig):
    """The U-Net's shape."""

    encoder: str | None = Field(None, description="frozen image features at 1/8, by name")


@register("unet-ce")
class UNetCE(StochasticSegmenter):
    """Cross-entropy against one random rater a step; its n samples are n times the arg-max."""

    Config: ClassVar[type[UNetCEConfig]] = UNetCEConfig
    hot = ("unet",)

    def __init__(self, info: DatasetInfo, config: UNetCEConfig):
        super().__init__(info, config)
        self.encoder = None if config.encoder is None else make_encoder(config.encoder, info.image_channels)
        features = self.encoder.channels if self.encoder else 0
        self.unet = UNet(info.image_channels, info.num_classes, config, feature_channels=features, timed=False)

    def logits(self, image: Tensor) -> Tensor:
        h, w = image.shape[-2:]
        padded = pad_to_multiple(image, self.config.stride)
        features = None if self.encoder is None else self.encoder(padded)
        return self.unet(padded, features=features)[..., :h, :w].float()

    def tiled(self, tile: int, overlap: int) -> StochasticSegmenter:
        check_tiling(tile, overlap)
        return self._with(logits=lambda image: blended(self.logits, image, tile, overlap))

    def loss(
        self, image: Tensor, labels: Tensor, mask: Tensor | None, raters: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        rows = torch.arange(len(image), device=image.device)
        u = SeededNoise(keys).uniform((len(image), 1))[:, 0]
        rater = pick_raters(u, raters.cpu())[:, 0].to(image.device)
        terms = F.cross_entropy(self.logits(image), labels[rows, rater], reduction="none")
        if mask is not None:
            terms = terms.masked_fill(~mask[rows, rater], 0.0)
        return {"loss": terms.mean()}

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        mean = self.logits(image).softmax(1)
        labels = mean.argmax(1, keepdim=True).expand(-1, n, -1, -1).contiguous()
        weights = torch.full((len(image), n), 1 / n, device=image.device)
        return Samples(labels, mean, weights, seed)
