"""CIMD (Rahman et al., CVPR 2023): Gaussian diffusion of the mask, whose noise is tied to the raters' ambiguity.

Idea: a DDPM over the mask, conditioned on the image by concatenation, samples segmentations; its own randomness is the
diversity. Two small encoders map an image and a map to a low-dimensional Gaussian: Q reads a rater's mask y (the
ambiguity modelling network), P the network's noise estimate (the ambiguity controlling network), and P is pulled to Q:

    loss = || eps - eps_hat ||^2  +  L_vlb / 1000  +  KL( Q(image, y) || P(image, eps_hat) ) / 1000

L_vlb is the variational bound that trains only the variance (Nichol and Dhariwal 2021: its mean is detached); the
log-variance is interpolated between those of the forward jump and of the posterior. The encoders act only in training:
sampling is a plain DDPM of T = 1000 steps.

Differs from the original: the U-Net is the family's 9M one, so that methods and not sizes are compared (`base=50` gives
the published size); masks are ±1 (released: 0 and 1, which the same schedule hides sooner), and x0 is clamped to that
range in the bound; the encoders have strided convolutions and group normalization (released: those of the Probabilistic
U-Net), with a limit on the log-variance; the term of the bound at t = 1 is the likelihood of a mask value under two
bins that meet at 0, not of 256 gray values, in nats; with more than two classes the mask is a one-hot map of ±1 per
class, and the label the largest.

Cost: one U-Net pass per step and sample; 1000 steps by default.

Published parameters: 24M.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import normal_kl
from stochseg.limits import MAX_EVALUATIONS
from stochseg.models.baselines.gaussian_diffusion import GaussianDiffusion, GaussianDiffusionConfig, Noised, Prediction
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks import Condition, ContinuousUNet, UNetConfig
from stochseg.networks.blocks import group_norm
from stochseg.types import DatasetInfo, Losses


class CIMDConfig(GaussianDiffusionConfig, UNetConfig):
    """Shape of the U-Net, the diffusion and the ambiguity encoders."""

    schedule: Literal["cosine", "linear"] = "linear"
    num_timesteps: int = Field(1000, ge=1, le=MAX_EVALUATIONS, description="T")
    latent: int = Field(6, ge=1, description="dimensions of the ambiguity Gaussians")
    ambiguity_channels: tuple[int, ...] = Field((32, 64, 128, 192), min_length=1, description="channels per level")
    vlb_weight: float = Field(1e-3, ge=0, description="weight of the variational bound, summed over t")
    ambiguity_weight: float = Field(1e-3, ge=0, description="weight of the divergence of Q from P")


class AmbiguityEncoder(nn.Module):
    """Image and map "b c h w" -> mean and log-variance "b latent" each: convolutions, halving, global mean."""

    def __init__(self, in_channels: int, widths: tuple[int, ...], latent: int, groups: int):
        super().__init__()
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            layers += [
                nn.Conv2d(in_channels, width, 3, stride=1 if i == 0 else 2, padding=1),
                group_norm(width, groups),
                nn.SiLU(),
                nn.Conv2d(width, width, 3, padding=1),
                nn.SiLU(),
            ]
            in_channels = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(in_channels, 2 * latent)

    def forward(self, image: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(torch.cat([image, maps], dim=1)).mean((-2, -1))
        mean, log_variance = self.head(features).float().chunk(2, dim=1)
        return mean, log_variance.clamp(-10, 10)  # beyond it the divergence overflows


def mask_codes(num_classes: int) -> Tensor:
    """Codes ±1 "l c": one channel for two classes, otherwise one per class."""
    one_hot = 2 * torch.eye(num_classes) - 1
    return one_hot[:, 1:] if num_classes == 2 else one_hot


@register("cimd")
class CIMD(GaussianDiffusion):
    """Gaussian diffusion of the mask with learned variance and an ambiguity penalty."""

    config_type: ClassVar[type[CIMDConfig]] = CIMDConfig
    config: CIMDConfig
    training_defaults: ClassVar = {"lr": 1e-4, "final_lr": 1e-4, "batch_size": 20, "ema": 0.9999}

    def __init__(self, info: DatasetInfo, config: CIMDConfig):
        super().__init__(info, config, mask_codes(info.num_classes))
        channels = self.codes.shape[1]
        self.net = ContinuousUNet(channels, info.image_channels, 2 * channels, config)
        shape = (info.image_channels + channels, config.ambiguity_channels, config.latent, config.groups)
        self.posterior, self.prior = AmbiguityEncoder(*shape), AmbiguityEncoder(*shape)

    def _heads(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        """eps_hat and v, "b c h w" each; v is 1/2 where the network returns 0, and may leave [0, 1]."""
        eps, v = self.net(x_t, t.to(x_t.device), condition).chunk(2, dim=1)
        return eps, (v + 1) / 2

    def predict(self, x_t: Tensor, t: Tensor, previous: Tensor | None, condition: Condition) -> Prediction:
        eps, v = self._heads(x_t, t, condition)
        return self.process.predict_x0(x_t, eps, t), v

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        batch = self.noised(raters, mask, rater_count, keys)
        eps, v = self._heads(batch.x_t, batch.t, self.net.encode(image)[batch.rows])
        noise = batch.mean((eps - batch.eps) ** 2)
        bound = self.process.num_timesteps * batch.mean(self.bound_terms(batch, eps.detach(), v))  # one t for all T
        seen = eps if batch.mask is None else eps.masked_fill(~batch.mask[:, None], 0.0)
        condition = image[batch.rows]
        ambiguity = normal_kl(*self.posterior(condition, batch.x0), *self.prior(condition, seen)).sum(1).mean()
        total = noise + self.config.vlb_weight * bound + self.config.ambiguity_weight * ambiguity
        parts = {"noise": noise, "bound": bound, "ambiguity": ambiguity}
        return {"loss": total, **{name: part.detach() for name, part in parts.items()}}

    def bound_terms(self, batch: Noised, eps: Tensor, v: Tensor) -> Tensor:
        """KL( q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t) ), and -log p(x0 | x_1) at t = 1; "d c h w" in nats."""
        t, s = batch.t, batch.t - 1
        x0 = self.process.predict_x0(batch.x_t, eps, t).clamp(-1, 1)
        mean, _ = self.process.posterior(batch.x_t, x0, t, s)
        log_variance = self.process.log_variance(v, t, s)
        target, variance = self.process.posterior(batch.x_t, batch.x0, t, s)
        last = (t == 1).to(mean.device)[:, None, None, None]
        log_target = variance.masked_fill(last, 1.0).log()
        divergence = normal_kl(target, log_target, mean, log_variance)
        likelihood = -torch.special.log_ndtr(batch.x0 * mean * (-0.5 * log_variance).exp())
        return torch.where(last, likelihood, divergence)
