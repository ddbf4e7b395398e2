"""CCDM made cheap: an image tower that runs once per image, and a light denoiser that runs a few times per sample.

Idea: the diffusion of `ccdm`, with a network in two parts. The image tower holds most of the weights and never sees a
label; its features are added to each level of a label tower, which alone runs at every step. Both work on cells of 2×2
pixels. Training draws several (rater, t) pairs per image, all served by one pass of the image tower.

    f_θ(x_t, t, image) = label tower(x_t, t, image tower(image))
    loss = E -log f_θ(x_t, t, image)[x0],   t = T u^(1/2),   u uniform   (several components: `core.mixture_terms`)

Differs from `ccdm`: cross-entropy on x0, with more weight on noisy t, where a sample takes its mode; few steps with
the sampler `sticky`; one first evaluation for all samples of an image; labels may be restricted to the center of the
image (`focus`); the head may propose several maps with a probability each (`components`), so that pixels are drawn
jointly.

Cost: the image tower once per image, the label tower 10 times per sample, the first of them once for all samples.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import mixture_terms
from stochseg.errors import UserError
from stochseg.models.base import StochasticSegmenter
from stochseg.models.categorical_diffusion import CategoricalDiffusion, CategoricalDiffusionConfig
from stochseg.models.raters import Target
from stochseg.models.registry import register
from stochseg.networks import (
    Condition,
    EncoderConfig,
    Sizes,
    TwoTower,
    TwoTowerConfig,
    load_pretrained_encoder,
    make_encoder,
)
from stochseg.types import DatasetInfo, central


class CCDMFastConfig(CategoricalDiffusionConfig, TwoTowerConfig, EncoderConfig):
    """Shape of both towers, the diffusion, the part of the image in which labels vary, and image features."""

    objective: Literal["kl", "cross-entropy"] = "cross-entropy"
    draws: int = Field(4, ge=1, description="(rater, t) pairs per training image, all served by one encoding")
    t_power: float = Field(2.0, gt=0, description="t/T of training is u^(1/t_power): 1 is even, more prefers noisy t")
    sampler: str = "sticky"
    grid: str = "trailing"
    evaluations: int | None = Field(10, ge=1, description="network evaluations per sample; None is all T")
    share_first: bool = Field(True, description="evaluate the network on pure noise once for all samples of an image")
    focus: int | None = Field(None, ge=1, description="side of the central square in which labels vary; None: all")
    encoder_lr: float = Field(0.1, ge=0, description="learning rate of the encoder relative to the rest; 0 freezes it")
    anneal: int = Field(1000, ge=1, description="training steps over which the components of a mixture separate")


@register("ccdm-fast")
class CCDMFast(CategoricalDiffusion):
    """The diffusion of `ccdm` with another denoiser and cheaper defaults."""

    config_type: ClassVar[type[CCDMFastConfig]] = CCDMFastConfig
    takes_volumes = True
    training_defaults: ClassVar = {
        "lr": 1e-3,
        "final_lr": 1e-5,
        "decay": "tail",
        "warmup": 200,
        "ema": 0.999,
        "clip": 1.0,
        "batch_size": 32,
        "precision": "auto",
    }
    accelerated_modules = ("denoiser.image_tower", "denoiser.label_tower")
    config: CCDMFastConfig
    denoiser: TwoTower
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: CCDMFastConfig):
        super().__init__(info, config)
        if config.components > 1 and config.objective != "cross-entropy":
            raise UserError(
                f"objective: expected cross-entropy for a head of {config.components} components, got "
                f"{config.objective!r}; set objective=cross-entropy or components=1"
            )
        if config.encoder_lr > 0 and config.encoder_cache is not None:
            raise UserError(
                "encoder_cache: features that are trained cannot be cached; set encoder_lr=0 or omit the cache"
            )
        encoder = make_encoder(config, info, config.strides)
        if encoder is not None:
            encoder.requires_grad_(config.encoder_lr > 0)
        self.denoiser = TwoTower(info.num_classes, info.image_channels, config, encoder, spatial_dims=info.spatial_dims)
        if config.components > 1:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def load_pretrained(self) -> None:
        load_pretrained_encoder(self.denoiser.encoder, self.config)

    def parameter_groups(self) -> list[dict[str, Any]]:
        encoder = self.denoiser.encoder
        if encoder is None or self.config.encoder_lr == 0:
            return super().parameter_groups()
        pretrained = set(encoder.parameters())
        others = [p for p in self.parameters() if p not in pretrained]
        return [{"params": others}, {"params": list(encoder.parameters()), "lr_factor": self.config.encoder_lr}]

    def load_matching_weights(self, source: StochasticSegmenter) -> list[str]:
        """A head of one map also initializes a head of several components: copies with different thresholds."""
        fresh = super().load_matching_weights(source)
        if self.config.components > 1 and any(".head." in name or ".share." in name for name in fresh):
            self.updates.zero_()  # new components separate slowly, however long the source was trained
        if not isinstance(source, CCDMFast) or not source.config.components == 1 < self.config.components:
            return fresh
        if not self.denoiser.label_tower.copy_single_head(source.denoiser.label_tower):
            return fresh
        return [name for name in fresh if not name.startswith("denoiser.label_tower.head.")]

    def tiled(self, tile: Sizes, overlap: Sizes) -> StochasticSegmenter:
        if self.config.focus is not None:
            raise UserError(
                f"model {self.name!r} with focus {self.config.focus} cannot be tiled: it was trained to label the "
                "central square of images that are centered on their object"
            )
        return super().tiled(tile, overlap)

    def window(self, *size: int) -> tuple[slice, ...]:
        height, width = (central(length, self.config.focus) for length in size[-2:])
        return (*(slice(0, length) for length in size[:-2]), height, width)

    def _terms(self, target: Target, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        if self.config.components == 1:
            return super()._terms(target, x_t, t, condition)
        log_weight, logits = self.denoiser.propose(x_t, t.to(x_t.device), condition)
        left = 1 - min(1.0, self.updates.item() / self.config.anneal)
        if self.training:
            self.updates += 1
        log_p = torch.log_softmax(logits.float(), 2)
        x0, mask = target.labels, target.mask
        return mixture_terms(log_weight, log_p, x0, mask, temperature=30**left, floor=0.1 * left).mean()
