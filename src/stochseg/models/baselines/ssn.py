"""SSN: stochastic segmentation networks (Monteiro et al., NeurIPS 2020).

Idea: the logits of all pixels and classes of an image form one normal vector, whose covariance is low-rank plus
diagonal; a sample is drawn once and correlated over the whole image.

    η | x ~ N(μ(x), F(x) F(x)^T + diag d(x)),   p(y | x) = E_η  prod_i softmax(η_i)[y_i]

A U-Net computes features; 1×1 convolutions predict μ, log d and the r columns of F. The expectation is estimated with m
draws of η, half of them the mirror images about μ of the others (antithetic):

    loss = - log 1/m  sum_j exp( sum_i log softmax(η_i^j)[y_i] ),   in nats per pixel.

This is almost the likelihood of the best draw alone: nothing punishes the others, and the mirror images of good draws,
foreground for background, are among the samples. So the likelihood of single pixels under the mean of the draws is
added, which is largest for the raters' frequencies, as the likelihood of whole maps is:

    loss + marginal · - sum_i log 1/m  sum_j softmax(η_i^j)[y_i].

The mean first learns alone, by cross-entropy, for `warmup` steps, and the covariance starts small (d = exp(-4), F a
tenth of the usual start). Where images have a surrounding without tissue, as around a skull-stripped brain, nothing
limits the covariance either; `region="above-lowest"` sets F and d to 0 there, as the released code does outside a given
region of interest.

Differs from the original: the backbone is the U-Net shared by all models here (`image_tower={}`: the image tower of
`ccdm-fast`). The likelihood of single pixels, the warm-up and the small start are ours (`marginal=0 warmup=0` disables
the first two), and the region of interest is computed from the image. Logits are drawn as μ + F ε + sqrt(d) ε', which
needs no factorized covariance; the original falls back to a diagonal covariance for a whole batch when the
factorization fails in float32, this one for the single image whose covariance cannot be factorized in float64 (where
the device has it), which is far rarer. The loss is divided by the number of pixels.

Cost: one network pass per image; a sample costs a product of r by the number of logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_normal
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import one_rater
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, Rows, SamplingOptions, broken_rows, mark_broken, one_pass
from stochseg.networks import BackboneConfig, make_backbone, pad_to_multiple
from stochseg.networks.shapes import crop, slice_wise
from stochseg.types import DatasetInfo, Losses


@dataclass(frozen=True)
class LowRankNormal:
    """Normal vectors "l *space", one per image, of covariance F F^T + diag(d).

    mean: "b l *space"; diagonal d: "b l *space", positive; factor F: "b r l *space", the r columns of F.
    """

    mean: Tensor
    diagonal: Tensor
    factor: Tensor

    def __getitem__(self, rows: Tensor) -> LowRankNormal:
        """The distributions of these images, one per row; indices may repeat."""
        return LowRankNormal(self.mean[rows], self.diagonal[rows], self.factor[rows])

    def deviation(self, common: Tensor, own: Tensor) -> Tensor:
        """Draws minus the mean, "b m l *space", from standard normal numbers: common "b m r", own as the draws."""
        correlated: Tensor = torch.einsum("bmr,br...->bm...", common, self.factor)
        return correlated + self.diagonal.sqrt()[:, None] * own

    def draw(self, noise: Noise, m: int) -> Tensor:
        """m deviations per image, "b m l *space"."""
        b, r, *shape = self.factor.shape
        common, own = (draw_normal(noise.uniform((b, m, *size))).to(self.mean) for size in ([r], shape))
        return self.deviation(common, own)

    def spread(self) -> Tensor:
        """Root mean square of the logits' deviations from the mean."""
        return (self.diagonal + self.factor.square().sum(1)).mean().sqrt()

    def guarded(self) -> LowRankNormal:
        """The same distribution, with a diagonal covariance for images whose covariance cannot be factorized."""
        with torch.no_grad():
            root, failed = torch.linalg.cholesky_ex(self._capacitance())
            sound = (failed == 0) & root.isfinite().all((-2, -1))
        if bool(sound.all()):
            return self
        return replace(self, factor=torch.where(sound.view(-1, *[1] * (self.factor.ndim - 1)), self.factor, 0.0))

    def _capacitance(self) -> Tensor:
        """I + F^T diag(d)^-1 F, "b r r", as exact as the device allows: its largest eigenvalue may be 1e9."""
        exact = torch.float32 if self.factor.device.type == "mps" else torch.float64
        factor = self.factor.flatten(2).to(exact) / self.diagonal.flatten(1).to(exact).sqrt()[:, None]
        return torch.eye(factor.shape[1], dtype=exact, device=factor.device) + factor @ factor.mT


def log_mean_likelihoods(logits: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """log 1/m sum_j p(labels | logits_j) of the whole maps, and the same of single pixels, summed over pixels; "b".

    logits: "b m l *space"; labels and mask: "b *space".
    """
    m = logits.shape[1]
    index = labels[:, None, None].expand(-1, m, 1, *labels.shape[1:])
    log_p = torch.log_softmax(logits, 2).gather(2, index)[:, :, 0]
    if mask is not None:
        log_p = log_p.masked_fill(~mask[:, None], 0.0)
    log_p = log_p.flatten(2)
    return log_p.sum(-1).logsumexp(1) - math.log(m), (log_p.logsumexp(1) - math.log(m)).sum(-1)


class SSNConfig(SegmenterConfig, BackboneConfig):
    """Shape of the U-Net, rank of the covariance and number of draws in training."""

    rank: int = Field(10, ge=1, description="columns of the covariance factor")
    draws: int = Field(20, ge=2, multiple_of=2, description="draws of the logits in the training loss, in pairs")
    epsilon: float = Field(1e-5, gt=0, description="smallest independent variance of a logit")
    warmup: int = Field(100, ge=0, description="first training steps, in which the mean learns without the covariance")
    marginal: float = Field(1.0, ge=0, description="weight of the likelihood of single pixels under the mean of draws")
    region: Literal["all", "above-lowest"] = Field(
        "all", description="pixels whose logits vary; above-lowest: without those at the image's lowest intensity"
    )
    values_before: ClassVar[dict[str, object]] = {"warmup": 0, "marginal": 0.0}


def above_lowest(image: Tensor) -> Tensor:
    """Pixels "b 1 *space" in which some channel of an image "b c *space" is above its lowest intensity."""
    lowest = image.flatten(2).amin(2).view(*image.shape[:2], *[1] * (image.ndim - 2))
    return (image > lowest).any(1, keepdim=True)


@register("ssn")
class SSN(StochasticSegmenter):
    """A low-rank normal distribution over the logits of the whole image."""

    config_type: ClassVar[type[SSNConfig]] = SSNConfig
    accelerated_modules = ("unet",)
    takes_volumes = True
    config: SSNConfig
    training_defaults: ClassVar = {"lr": 1e-3, "batch_size": 12}
    idle_parameters = True
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: SSNConfig):
        super().__init__(info, config)
        self.unet = make_backbone(info.image_channels, config.base, config, spatial_dims=info.spatial_dims)
        # Zero features would make the factor the same at every pixel.
        cast(nn.Conv2d, cast(nn.Sequential, self.unet.head)[-1]).reset_parameters()
        self.mean = nn.Conv2d(config.base, info.num_classes, 1)
        self.log_diagonal = nn.Conv2d(config.base, info.num_classes, 1)
        self.factor = nn.Conv2d(config.base, config.rank * info.num_classes, 1)
        with torch.no_grad():
            cast(Tensor, self.log_diagonal.bias).fill_(-4.0)
            for parameter in self.factor.parameters():
                parameter.mul_(0.1)
        if config.warmup:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def distribution(self, image: Tensor) -> LowRankNormal:
        """Distribution of the logits of each image "b c *space"; in float32 for any precision of the network.

        It is as the network gives it: `guarded` makes it one to draw from.
        """
        padded = pad_to_multiple(image, self.config.stride)
        features = F.silu(crop(self.unet(padded), image.shape[2:]).float())
        with torch.autocast(image.device.type, enabled=False):
            diagonal = slice_wise(self.log_diagonal, features).exp()
            factor = torch.unflatten(slice_wise(self.factor, features), 1, (self.config.rank, self.num_classes))
            if self.config.region == "above-lowest":
                region = above_lowest(image)
                diagonal, factor = torch.where(region, diagonal, 0.0), torch.where(region[:, None], factor, 0.0)
            return LowRankNormal(slice_wise(self.mean, features), diagonal + self.config.epsilon, factor)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        target = one_rater(raters, mask, rater_count, SeededNoise(keys))
        noise = SeededNoise([(*key, 0) for key in keys], image.device)
        normal = self.distribution(image).guarded()
        with torch.autocast(image.device.type, enabled=False):
            logits = normal.mean[:, None]
            if not (self.training and self._warms_up()):
                deviation = normal.draw(noise, self.config.draws // 2)
                logits = logits + torch.cat([deviation, -deviation], 1)
            joint, single = log_mean_likelihoods(logits, target.labels, target.mask)
        parts = {"joint": -joint.mean() / image[0, 0].numel(), "marginal": -single.mean() / image[0, 0].numel()}
        total = parts["joint"] + self.config.marginal * parts["marginal"]
        return {"loss": total, **{k: v.detach() for k, v in parts.items()}, "spread": normal.spread().detach()}

    def _warms_up(self) -> bool:
        """Whether the current training step is one of the first, which are counted."""
        if self.config.warmup == 0:
            return False
        self.updates += 1
        return self.updates.item() <= self.config.warmup

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        normal = self.distribution(image)
        broken = broken_rows(normal.factor)  # in training, a step without a covariance is no harm
        normal = normal.guarded()

        def predict(rows: Rows, noise: Noise) -> Tensor:
            local = normal[rows.image]
            return mark_broken((local.mean + local.draw(noise, 1)[:, 0]).softmax(1), broken[rows.image])

        return one_pass(predict)
