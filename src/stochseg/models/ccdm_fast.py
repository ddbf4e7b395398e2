"""CCDM made cheap: an image tower run once an image, a light denoiser run a few times a sample.

Idea: the diffusion of `ccdm`, with a network in two parts. The image tower holds most of the weights and never sees a
label; what it finds is added to each level of a label tower, which alone runs at every step. Both work on cells of 2×2
pixels. Training draws several (rater, t) pairs of an image, all served by one pass of the image tower.

    f_θ(x_t, t, image) = label tower(x_t, t, image tower(image))
    loss = E -log f_θ(x_t, t, image)[x0],   t = T u^(1/2),   u uniform   (several components: `core.mixture_terms`)

Differs from `ccdm`: cross-entropy on x0, more of it at noisy t, where a sample takes its mode; few steps with the
sampler `sticky`; one first step for all samples of an image; labels may be held to the center of the image (`focus`);
the head may propose several maps with a probability each (`components`), so that pixels are drawn together.

Cost: the image tower once an image, the label tower 10 times a sample, of which the first once for all samples.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import mixture_terms
from stochseg.errors import UserError
from stochseg.models.base import StochasticSegmenter
from stochseg.models.diffusion import CategoricalDiffusion, DiffusionConfig
from stochseg.models.registry import register
from stochseg.networks import Condition, TwoTower, TwoTowerConfig
from stochseg.types import DatasetInfo, central


class CCDMFastConfig(DiffusionConfig, TwoTowerConfig):
    """Both towers' shape, the diffusion, and where in the image labels vary."""

    objective: Literal["kl", "cross-entropy"] = "cross-entropy"
    draws: int = Field(4, ge=1, description="(rater, t) pairs a training image, all served by one encoding")
    t_power: float = Field(2.0, gt=0, description="t/T of training is u^(1/t_power): 1 is even, more prefers noisy t")
    sampler: str = "sticky"
    grid: str = "trailing"
    steps: int | None = Field(10, ge=1, description="network calls a sample by default; None is all T")
    share_first: bool = Field(True, description="one first network call, which sees pure noise, for all samples")
    focus: int | None = Field(
        None, ge=1, description="labels vary in the central square of so many pixels a side only; None: everywhere"
    )
    anneal: int = Field(1000, ge=1, description="training steps over which the components of a mixture part")


@register("ccdm-fast")
class CCDMFast(CategoricalDiffusion):
    """The same diffusion as `ccdm` with another denoiser and cheaper defaults."""

    Config: ClassVar[type[CCDMFastConfig]] = CCDMFastConfig
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
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: CCDMFastConfig):
        super().__init__(info, config)
        if config.components > 1 and config.objective != "cross-entropy":
            raise UserError(
                f"a head of {config.components} components is trained with objective=cross-entropy, got "
                f"{config.objective!r}; the bound is for a single product of pixels"
            )
        self.denoiser = TwoTower(info.num_classes, info.image_channels, config)
        if config.components > 1:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def adopt(self, source: StochasticSegmenter) -> list[str]:
        """A head of one map also begins one of several components: all alike, but some see more and some less."""
        fresh = super().adopt(source)
        if self.config.components > 1 and any(".head." in name or ".share." in name for name in fresh):
            self.updates.zero_()  # new components part from each other slowly, however long the source was trained
        if not isinstance(source, CCDMFast) or not source.config.components == 1 < self.config.components:
            return fresh
        if not self.denoiser.label_tower.copy_single_head(source.denoiser.label_tower):
            return fresh
        return [name for name in fresh if not name.startswith("denoiser.label_tower.head.")]

    def tiled(self, tile: int, overlap: int) -> StochasticSegmenter:
        if self.config.focus is not None:
            raise UserError(
                f"model {self.name!r} with focus {self.config.focus} cannot be tiled: it was trained to label the "
                "central square of images centered on what is sought"
            )
        return super().tiled(tile, overlap)

    def window(self, height: int, width: int) -> tuple[slice, slice]:
        return central(height, self.config.focus), central(width, self.config.focus)

    def _terms(self, x0: Tensor, x_t: Tensor, t: Tensor, valid: Tensor | None, condition: Condition) -> Tensor:
        if self.config.components == 1:
            return super()._terms(x0, x_t, t, valid, condition)
        log_share, logits = self.denoiser.propose(x_t, t, condition)
        done = min(1.0, self.updates.item() / self.config.anneal)
        if self.training:
            self.updates += 1
        log_p = torch.log_softmax(logits.float(), 2)
        return mixture_terms(log_share, log_p, x0, valid, temperature=30 ** (1 - done), floor=0.1 * (1 - done)).mean()
