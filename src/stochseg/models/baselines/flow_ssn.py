"""Flow-SSN: flow stochastic segmentation networks, continuous-time (De Sousa Ribeiro et al., ICCV 2025).

Idea: a large network reads the image once and predicts where in logit space samples start; a light one carries each
start along a straight-line flow to a label map. The flow never sees the image: it learns how the pixels of a map belong
together, which a low-rank normal distribution cannot express.

    u ~ N(μ(x), σ²),   y_t = (1 - t) u + t x1,   p(y_t, t) = softmax(flow network) ≈ E[x1 | y_t],

where x1 are the one-hot labels. Training is cross-entropy of p against the labels at t ~ U(0, 1); its optimum is the
conditional mean. Along one line the velocity is x1 - u; the flow with the same marginals at every t moves with its
conditional mean. Since u = (y_t - t x1) / (1 - t) on every line through y_t,

    v(y_t, t) = E[x1 - u | y_t] = (p - y_t) / (1 - t),

and a step of Euler's method from t to s is y_s = y_t + (s - t) / (1 - t) (p - y_t): the last one ends at p itself, so a
sample's probabilities are those of the last evaluation, and its labels their arg-max.

Differs from the original: the released sampler moves with p - u, where u is the sample's own start (`sampler="start"`
here). That is the velocity of one line, not the conditional mean, and the two agree only where p no longer changes:
with an exact p and two readings of one pixel, of probability 0.7 and 0.3, the second is drawn with 0.30 by `euler` and
with 0.26 by `start`, both with 200 even steps. Large regions take their mode close to t = 0, where even steps are too
long: of two readings of 32×32 pixels the second is drawn with 0.12 by 10 even steps (the published number) and with
0.27 by 10 steps of `grid="early"`. Networks have no dropout; in this library's blocks, at their published widths and
depth, the light one has 0.10M parameters, not 0.15M, and the large one 9.66M, not 14.29M: the released blocks also
change the resolution and have 3×3 convolutions as shortcuts, and layers for a time that the large one never reads are
counted. `image_unet.blocks=2` gives 13.76M. The learning rate rises over 100 steps (released: 2000, more than a short
budget has). Under void pixels the flow reads the mean of all labels as x1.

Cost: one pass of the large network per image, and one pass of the light network per step and sample.

Published parameters: 14.4M.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import Noise, draw_normal
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import draw_pairs
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import CellUNet, TowerOption, UNet, UNetConfig, pad_to_multiple
from stochseg.networks.shapes import crop, one_hot
from stochseg.types import DatasetInfo, Losses

TIME_SCALE = 1000
"""The time embedding is made for integer steps; t in [0, 1] is scaled to this many."""

Predict = Callable[[Tensor, float], Tensor]
"""(y_t "m l h w", t) -> E[x1 | y_t], probabilities "m l h w"."""

Times = Sequence[float]
"""Increasing from 0 to 1; the network is evaluated at all except the last."""


def euler(predict: Predict, u: Tensor, times: Times, report: Report) -> Tensor:
    """Integrate v = (p - y) / (1 - t) from u at t = 0. Returns y at t = 1, the probabilities of the last evaluation."""
    y = u
    for i, (t, s) in enumerate(pairwise(times)):
        y = torch.lerp(y, predict(y, t), (s - t) / (1 - t))  # exact at s = 1
        report(i)
    return y


def start(predict: Predict, u: Tensor, times: Times, report: Report) -> Tensor:
    """The released rule v = p - u. Returns the mean of the probabilities of all evaluations, weighted by time."""
    y, mean = u, torch.zeros_like(u)
    for i, (t, s) in enumerate(pairwise(times)):
        mean = mean + (s - t) * predict(y, t)
        y = (1 - s) * u + mean
        report(i)
    return mean


SOLVERS: dict[str, Callable[[Predict, Tensor, Times, Report], Tensor]] = {"euler": euler, "start": start}

TIMES: dict[str, Callable[[int], Times]] = {
    "even": lambda steps: [i / steps for i in range(steps + 1)],
    "early": lambda steps: [(i / steps) ** 2 for i in range(steps + 1)],
}
"""Time grids: "early" has more steps near t = 0, where large regions take their mode."""


class ImageUNetConfig(UNetConfig):
    """The network that reads the image."""

    multipliers: tuple[float, ...] = Field((1, 2, 4, 8), min_length=1, description="channels per level, times base")
    blocks: int = Field(1, ge=1, description="residual blocks per level in the encoder; the decoder has one more")
    attention: tuple[int, ...] = Field((), description="down-sampling factors with self-attention")
    head_channels: int = Field(64, ge=1, description="channels of an attention head")


class FlowUNetConfig(ImageUNetConfig):
    """The light network of the flow."""

    base: int = Field(16, ge=1, description="channels of the first level")
    multipliers: tuple[float, ...] = Field((1, 1, 1), min_length=1, description="channels per level, times base")
    head_channels: int = Field(16, ge=1, description="channels of an attention head")


class FlowSSNConfig(SegmenterConfig, TowerOption):
    """Shape of both networks, spread of the start, and the defaults of sampling. Defaults: the published LIDC model."""

    image_unet: ImageUNetConfig = Field(ImageUNetConfig(), description="the network that reads the image once")
    flow_unet: FlowUNetConfig = Field(FlowUNetConfig(), description="the network that runs once per step and sample")
    spread: float = Field(1.0, gt=0, description="σ, the standard deviation of a logit at the start")
    draws: int = Field(1, ge=1, description="(rater, t) pairs per training image, for one pass of the image network")
    sampler: str = Field("euler", description="euler, or start: the released rule")
    grid: str = Field("even", description="even, or early: more steps near t = 0")
    evaluations: int = Field(10, ge=1, description="evaluations of the flow's network per sample")
    renamed_keys: ClassVar[dict[str, str]] = {"steps": "evaluations"}

    @property
    def raters_per_image(self) -> int | None:
        """Raters of an image that one training step draws; None: it takes all of them."""
        return self.draws


@register("flow-ssn")
class FlowSSN(StochasticSegmenter):
    """A straight-line flow from image-dependent normal logits to label maps."""

    config_type: ClassVar[type[FlowSSNConfig]] = FlowSSNConfig
    accelerated_modules = ("image_unet", "flow_unet")
    sampling_choices: ClassVar = {"evaluations": (), "sampler": SOLVERS, "grid": TIMES}
    config: FlowSSNConfig
    training_defaults: ClassVar = {
        "optimizer": "adamw",
        "weight_decay": 1e-4,
        "lr": 1e-4,
        "batch_size": 32,
        "ema": 0.9999,
    }

    def __init__(self, info: DatasetInfo, config: FlowSSNConfig):
        super().__init__(info, config)
        self.image_unet: UNet | CellUNet
        if config.image_tower is None:
            self.image_unet = UNet(info.image_channels, info.num_classes, config.image_unet, timed=False)
        else:
            self.image_unet = CellUNet(info.image_channels, info.num_classes, config.image_tower)
        self.flow_unet = UNet(info.num_classes, info.num_classes, config.flow_unet)
        self.check_options(self.default_sampling())

    def start_mean(self, image: Tensor) -> Tensor:
        """μ "b l h w"; runs once per image."""
        tower, own = self.config.image_tower, self.config.image_unet.stride
        padded = pad_to_multiple(image, own if tower is None else tower.strides[-1])
        return crop(self.image_unet(padded), image.shape[-2:]).float()

    def logits(self, y: Tensor, t: Tensor) -> Tensor:
        """Logits of x1 given y_t "m l h w" and t "m" in [0, 1]."""
        padded = pad_to_multiple(y, self.config.flow_unet.stride)
        return crop(self.flow_unet(padded, TIME_SCALE * t), y.shape[-2:]).float()

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        """Cross-entropy at random t, in nats per pixel, for `draws` pairs of a rater and a time per image."""
        rows, target, t, noise = draw_pairs(raters, mask, rater_count, keys, self.config.draws)
        t, x1 = t.to(image.device), one_hot(target.labels, self.num_classes)
        if target.mask is not None:
            x1 = torch.where(target.mask[:, None], x1, 1 / self.num_classes)
        y_t = torch.lerp(self._start(self.start_mean(image)[rows], noise), x1, t[:, None, None, None])
        return {"loss": target.cross_entropy(self.logits(y_t, t)).mean()}

    def _start(self, mean: Tensor, noise: Noise) -> Tensor:
        return mean + self.config.spread * draw_normal(noise.uniform(mean.shape)).to(mean)

    def default_sampling(self) -> SamplingOptions:
        chosen = self.config.model_dump(include={"evaluations", "sampler", "grid"})
        return SamplingOptions(noise="independent", **chosen)

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        assert options.sampler is not None and options.grid is not None  # noqa: PT018
        assert options.evaluations is not None
        solve, times = SOLVERS[options.sampler], TIMES[options.grid](options.evaluations)
        mean = self.start_mean(image)

        def predict(y: Tensor, t: float) -> Tensor:
            return self.logits(y, torch.full((len(y),), t, device=y.device)).softmax(1)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            p = solve(predict, self._start(mean[rows.image], noise), times, report)
            return Drawn(p, evaluations=len(times) - 1)

        return Drawing(draw, len(times) - 1)
