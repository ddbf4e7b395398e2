"""PHiSeg (Baumgartner et al., MICCAI 2019): a hierarchy of spatial latents, each adding detail to the segmentation.

Idea: latents z_L .. z_1 of 2 channels at five resolutions, drawn from coarse to fine, each given the next coarser one
and the image. A likelihood network sees only the latents; every level predicts logits, and the segmentation is the sum
of the levels' logits, enlarged to the image's size: level l adds what the coarser levels lack.

    loss = Σ_l CE(y, Σ_{m ≥ l} up(s_m)) + Σ_l 4^l KL(q(z_l | z_{l+1}, x, y) ‖ p(z_l | z_{l+1}, x)),   z ~ q

with l = 0 the finest level: the weights 4^l compensate for the four times fewer positions of each coarser level.

Differs from the original: group normalization instead of batch normalization, so that an image's loss does not depend
on its neighbors; log σ (clamped smoothly) is predicted instead of σ by softplus, and all distributions by 1×1
convolutions (released: 3×3 for the means of the coarsest level); the whole loss is divided by the number of pixels, a
constant. Void pixels carry no label in the posterior's input.

Cost: the prior's encoder once per image; a sample takes the prior's decoder and the likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise
from stochseg.errors import UserError
from stochseg.models.baselines.latent import Channels, LatentConfig, LatentSegmenter, draws_from, given
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Choose, Gaussian, GaussianHead
from stochseg.networks.pyramids import Contracting, conv_stack, twice
from stochseg.networks.shapes import crop
from stochseg.types import DatasetInfo, Losses


class PHiSegConfig(LatentConfig):
    """Shape of the networks and weights of the loss. Defaults: the paper's LIDC model."""

    channels: Channels = (32, 64, 128, 192, 192, 192, 192)
    convs: int = Field(3, ge=1, description="convolutions per resolution in the encoders; elsewhere two")
    groups: int = Field(8, ge=1, description="groups of the normalization")
    levels: int = Field(5, ge=1, description="latent levels, at the coarsest resolutions")
    latent: int = Field(2, ge=1, description="channels per latent level")
    kl_growth: float = Field(4.0, gt=0, description="weight of the KL of level i: this to the power i; 0 is the finest")

    joins: Literal["released", "wide"] = Field(
        "released", description="layers that join two levels; wide: with the channels of their level, of older models"
    )
    values_before: ClassVar[dict[str, object]] = {"joins": "wide"}

    @property
    def lift(self) -> int:
        """Number of doublings from the size of the finest latents to that of the image."""
        return len(self.channels) - self.levels


class LatentHierarchy(nn.Module):
    """An encoder, and a path from coarse to fine latents: each level sees its features and the next coarser latents."""

    def __init__(self, in_channels: int, config: PHiSegConfig):
        super().__init__()
        self.lift = config.lift
        stack = partial(conv_stack, groups=config.groups)
        self.encoder = Contracting(in_channels, config.channels, partial(stack, convs=config.convs))
        widths = config.channels[config.lift :]
        # Channels of the enlarged latents and of the joined maps per level.
        above, joined = widths[:-1], widths[:-1]
        if config.joins == "released":
            above, joined = (config.latent * config.channels[0],) * len(above), config.channels[: len(above)]
        self.heads = nn.ModuleList([GaussianHead(c, config.latent) for c in (*joined, widths[-1])])
        self.enlarged = nn.ModuleList([stack(config.latent, a, convs=2) for a in above])
        self.joined = nn.ModuleList(
            [stack(c + a, j, convs=2) for c, a, j in zip(widths[:-1], above, joined, strict=True)]
        )

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features of the latent levels, finest first."""
        levels: tuple[Tensor, ...] = self.encoder(x)
        return levels[self.lift :]

    def descend(self, features: Sequence[Tensor], choose: Choose) -> tuple[list[Gaussian], list[Tensor]]:
        """The distributions of all levels and the chosen latents, both finest first; the coarsest is chosen first."""
        gaussians, latents = [self.heads[-1](features[-1])], []
        latents.append(choose(gaussians[0]))
        for i in reversed(range(len(features) - 1)):
            above = self.enlarged[i](twice(latents[-1]))
            gaussians.append(self.heads[i](self.joined[i](torch.cat([features[i], above], dim=1))))
            latents.append(choose(gaussians[-1]))
        return gaussians[::-1], latents[::-1]


class Likelihood(nn.Module):
    """Latents -> logits per level at the resolution of the level, both finest first; the finest has the image's."""

    def __init__(self, num_classes: int, config: PHiSegConfig):
        super().__init__()
        stack = partial(conv_stack, groups=config.groups)
        widths, released = config.channels[: config.levels], config.joins == "released"
        self.first = nn.ModuleList([stack(config.latent, c, convs=2) for c in widths])
        lift = partial(stack, convs=1 if released else 2)
        self.lifts = nn.ModuleList([nn.ModuleList([lift(c, c) for _ in range(config.lift)]) for c in widths])
        outputs = (*(config.channels[config.lift :] if released else widths)[: config.levels - 1], widths[-1])
        incoming = widths[:-1] if released else widths[1:]  # channels of the coarser level's map where it is joined
        self.below = nn.ModuleList(
            [stack(c, a, convs=1) if released else nn.Identity() for c, a in zip(outputs[1:], incoming, strict=True)]
        )
        joined = zip(widths[:-1], incoming, outputs[:-1], strict=True)
        self.joined = nn.ModuleList([stack(a + b, c, convs=2) for a, b, c in joined])
        self.heads = nn.ModuleList([nn.Conv2d(c, num_classes, 1) for c in outputs])

    def forward(self, *latents: Tensor) -> tuple[Tensor, ...]:
        logits: list[Tensor] = []
        carried = None
        for i in reversed(range(len(latents))):
            h = self.first[i](latents[i])
            for stage in cast(nn.ModuleList, self.lifts[i]):
                h = stage(twice(h))
            if carried is not None:
                h = self.joined[i](torch.cat([h, self.below[i](twice(carried))], dim=1))
            carried = h
            logits.append(self.heads[i](carried))
        return tuple(logits[::-1])


def cumulative(logits: Sequence[Tensor]) -> list[Tensor]:
    """Sums of each level's logits with those of all coarser ones, at the finest level's size; finest first."""
    size, total, out = logits[0].shape[-2:], torch.zeros_like(logits[0], dtype=torch.float32), []
    for level in reversed(logits):
        total = total + F.interpolate(level.float(), size=size, mode="nearest")
        out.append(total)
    return out[::-1]


@register("phiseg")
class PHiSeg(LatentSegmenter):
    """Five latent levels from coarse to fine, each correcting the segmentation of the coarser ones."""

    config_type: ClassVar[type[PHiSegConfig]] = PHiSegConfig
    accelerated_modules = ("prior.encoder", "likelihood")
    config: PHiSegConfig
    training_defaults: ClassVar = {"lr": 1e-3, "batch_size": 12}

    def __init__(self, info: DatasetInfo, config: PHiSegConfig):
        super().__init__(info, config)
        if config.lift < 0:
            raise UserError(
                f"{config.levels} latent levels need as many resolutions, got {len(config.channels)} channels; use "
                "fewer levels or more channels"
            )
        self.prior = LatentHierarchy(info.image_channels, config)
        self.posterior = LatentHierarchy(info.image_channels + info.num_classes, config)
        self.likelihood = Likelihood(info.num_classes, config)

    def encode(self, image: Tensor) -> Condition:
        features = self.prior.encode(self.padded(image))
        return Condition(features, tuple(image.shape[2:]))

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        _, latents = self.prior.descend(condition.tensors, draws_from(noise))
        return crop(cumulative(self.likelihood(*latents))[0], condition.size)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        h, w = image.shape[-2:]
        target, seen, noise = self.observe(image, raters, mask, rater_count, keys)
        posterior, latents = self.posterior.descend(self.posterior.encode(seen), draws_from(noise))
        prior, _ = self.prior.descend(self.encode(image).tensors, given(latents[::-1]))
        sums = cumulative(self.likelihood(*latents))
        cross_entropy = torch.stack([target.cross_entropy(s[..., :h, :w]).mean() for s in sums])
        kl = torch.stack([q.kl(p).mean() for q, p in zip(posterior, prior, strict=True)])
        weights = self.config.kl_growth ** torch.arange(len(kl), device=kl.device)
        total = cross_entropy.sum() + (weights * kl).sum() / (h * w)
        return {"loss": total, "cross_entropy": cross_entropy[0].detach(), "kl": kl.sum().detach()}
