"""CCDM made cheap: an image tower that runs once per image, and a light denoiser that runs a few times per sample.

Idea: the diffusion of `ccdm`, with a network in two parts. The image tower holds most of the weights and never sees a
label; its features are added to each level of a label tower, which alone runs at every step. Both work on cells of 2×2
pixels. Training draws several (rater, t) pairs per image, all served by one pass of the image tower.

    f_θ(x_t, t, image) = label tower(x_t, t, image tower(image))
    loss = E -log f_θ(x_t, t, image)[x0],   t = T u^(1/2),   u uniform   (several components: `core.mixture_terms`)

With `rater_conditioning` every named rater has a vector h_r, added to the embedding of t and, through a linear map, to
the log-weights of the components; it is 0 in a share of the training draws, for `sample(image)` by any of them:

    f_θ(x_t, t, image, h_r),   guided: logits(h = 0) + w (logits(h_r) - logits(h = 0))

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
from torch import Tensor, nn

from stochseg.core import SeededNoise, mixture_terms
from stochseg.errors import UserError
from stochseg.models.base import StochasticSegmenter
from stochseg.models.categorical_diffusion import CategoricalDiffusion, CategoricalDiffusionConfig
from stochseg.models.hands import new_hands
from stochseg.models.raters import Target, rater_number
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, SamplingOptions
from stochseg.networks import (
    Condition,
    EncoderConfig,
    Sizes,
    Tiled,
    TwoTower,
    TwoTowerConfig,
    load_pretrained_encoder,
    make_encoder,
)
from stochseg.networks.sharing import shared_copy
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
    rater_conditioning: bool = Field(False, description="learn each named rater's hand, for sample(image, rater=NAME)")
    rater_dropout: float = Field(
        0.15, ge=0, lt=1, description="share of training draws without their rater's name, which teach the hand of any"
    )


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
    hands: nn.Parameter

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
        by_rater = config.rater_conditioning
        self.denoiser = TwoTower(
            info.num_classes, info.image_channels, config, encoder, spatial_dims=info.spatial_dims, by_rater=by_rater
        )
        if by_rater:
            self.hands = new_hands(info, self.denoiser.rater_width)
            self.sampling_choices = {**self.sampling_choices, "guidance": ()}  # type: ignore[misc]
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
        """A head of fewer components also initializes one of more: copies with different thresholds. Raters keep their
        hands by name."""
        own = self.hands.detach().clone() if self.config.rater_conditioning else None
        fresh = super().load_matching_weights(source)
        if own is not None:
            theirs = dict(zip(source.rater_names, getattr(source, "hands", ()), strict=True))
            known = [theirs.get(name, own[i]) for i, name in enumerate(self.rater_names)]
            self.hands.detach().copy_(torch.stack(known))
        before = source.config.components if isinstance(source, CCDMFast) else self.config.components
        if before < self.config.components:
            assert isinstance(source, CCDMFast)
            if self.denoiser.label_tower.copy_head(source.denoiser.label_tower):
                copied = (".head.",) if before == 1 else (".head.", ".share.", ".rater_share.")
                fresh = [name for name in fresh if not any(part in name for part in copied)]
        if self.config.components > 1 and (before == 1 or any(".head." in n or ".share." in n for n in fresh)):
            self.updates.zero_()  # new components separate slowly, however long the source was trained
        return fresh

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

    @property
    def rater_names(self) -> tuple[str, ...]:
        return self.info.rater_names if self.config.rater_conditioning else ()

    def as_rater(self, rater: str, guidance: float | None = None) -> CCDMFast:
        """This model over the same weights, which draws as one rater would; the arguments are those of `sample`."""
        model, vector = shared_copy(self), self.hands[rater_number(rater, self.rater_names, self.name)].detach()
        tower = model.denoiser.inner if isinstance(model.denoiser, Tiled) else model.denoiser
        assert isinstance(tower, TwoTower)
        tower.rater, tower.guidance = vector, 1.0 if guidance is None else guidance
        return model

    def _drawing(self, image: Tensor, keys: Keys, options: SamplingOptions, known: Tensor | None) -> Drawing:
        model = self if options.rater is None else self.as_rater(options.rater, options.guidance)
        return super(CCDMFast, model)._drawing(image, keys, options, known)

    def _for_raters(self, condition: Condition, target: Target, keys: Keys) -> Condition:
        if not self.config.rater_conditioning or target.rater is None:
            return condition
        rater, known = target.rater.to(self.device), target.rater.to(self.device) >= 0
        if self.training:
            stream = self.config.draws  # the rows of an image have the streams below this
            dropped = SeededNoise([(*key, stream) for key in keys]).uniform((len(keys), self._draws)).flatten()
            known = known & (dropped >= self.config.rater_dropout).to(known.device)
        return self.denoiser.for_raters(condition, self.hands[rater.clamp(min=0)] * known[:, None])

    def _terms(self, target: Target, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        if self.config.components == 1:
            return super()._terms(target, x_t, t, condition)
        log_weight, logits = self.denoiser.propose(x_t, self._network_step(t, x_t), condition)
        left = 1 - min(1.0, self.updates.item() / self.config.anneal)
        if self.training:
            self.updates += 1
        log_p = torch.log_softmax(logits.float(), 2)
        x0, mask = target.labels, target.mask
        return mixture_terms(log_weight, log_p, x0, mask, temperature=30**left, floor=0.1 * left).mean()
