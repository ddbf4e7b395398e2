"""Joint Probabilistic U-Net (Zhang et al., ACM MM 2022): latents at every level that must also explain the image.

Idea: image x and map y are generated together from latents z, 8 numbers at each of 5 levels, so that z holds what the
image shows and what raters make of it. Convolutional encoders predict a Gaussian q(z | x, y) and a Gaussian of the
image alone, both from coarse to fine: those of a level see the latents of all coarser levels. A NICE flow f turns the
second into the prior, which is not Gaussian. An image decoder reads only z; a mask decoder reads z, the encoder's
features of the image and the maps of the image decoder at every level.

    q(z | x, y) = prod_i N(z_i; m_q(x, y, z_>i), s_q²),   p(z | x) = prod_i N(f(z)_i; m_p(x, f(z)_>i), s_p²) |det df/dz|
    loss = ½ Σ_pixels |x - x̂(z)| + Σ_pixels CE(y, ŷ(x, z)) + β KL,   z ~ q,   β = 2
    KL ≈ log q(z | x, y) - log p(z | x)

Training sends draws of the posterior through f to the Gaussian of the image; sampling sends draws of that Gaussian
through the inverse of f. Both are one pass of a small network.

Differs from the original: written from its description, with our own choices. Its weights are 10 for the mean of the
five levels' KL, and 1 for the L1 of images in [0, 1], which are in [-1, 1] here. All 40 latents go through one flow, so
that levels may depend on each other; the KL is that of the flow, by one draw; z is tiled over its level, in the image
decoder with the coordinates of each position, because a tiled vector carries no location; the prior's encoder is that
of the U-Net; there is no batch normalization, log σ is limited, and cross-entropy over any number of classes replaces
its binary form. Its remedies against collapsing latents with few raters are omitted. The loss is divided by the number
of pixels, a constant; over several image channels the mean is taken. Void pixels carry no label in the posterior's
input.

Cost: the encoder once per image; a sample takes the inverse flow and both decoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise, standard_normal
from stochseg.models.baselines.latent import Channels, LatentConfig, LatentSegmenter, given
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks.denoisers import Condition
from stochseg.networks.flows import NICE
from stochseg.networks.latents import Choose, Gaussian, GaussianHead
from stochseg.networks.pyramids import Contracting, conv_stack, twice
from stochseg.networks.shapes import crop
from stochseg.types import DatasetInfo, Losses


class JProbUNetConfig(LatentConfig):
    """Shape of the networks and weights of the loss. Defaults: the LIDC model."""

    channels: Channels = (32, 64, 128, 192, 192)  # of all encoders and decoders
    convs: int = Field(3, ge=1, description="convolutions per level")
    groups: int | None = Field(None, ge=1, description="groups of the normalization; None: no normalization")
    latent: int = Field(8, ge=2, description="dimensions of z per level")
    couplings: int = Field(4, ge=1, description="coupling layers of the NICE flow")
    flow_width: int = Field(64, ge=1, description="hidden units of a coupling layer")
    image_weight: float = Field(0.5, ge=0, description="weight of the image's L1 against the map's cross-entropy")
    beta: float = Field(2.0, ge=0, description="weight of the KL against sums over pixels; released: 10 / levels")
    conditioning: Literal["top-down", "none"] = Field(
        "top-down",
        description="latents see coarser ones, and the mask decoder the image decoder; none: neither, of older models",
    )
    values_before: ClassVar[dict[str, object]] = {"conditioning": "none"}


class LevelEncoder(nn.Module):
    """A contracting path, and a Gaussian over "b levels·latent", from coarse to fine, given the mean of each level."""

    def __init__(self, in_channels: int, config: JProbUNetConfig):
        super().__init__()
        stage = partial(conv_stack, convs=config.convs, groups=config.groups)
        self.path = Contracting(in_channels, config.channels, stage)
        self.top_down = config.conditioning == "top-down"
        coarser = [config.latent * i * self.top_down for i in reversed(range(len(config.channels)))]
        sizes = zip(config.channels, coarser, strict=True)
        self.heads = nn.ModuleList([GaussianHead(c + above, config.latent) for c, above in sizes])

    def forward(self, x: Tensor) -> list[Tensor]:
        """Features, finest first."""
        return list(self.path(x))

    def descend(self, features: Sequence[Tensor], choose: Choose) -> tuple[Gaussian, Tensor]:
        """The Gaussian and the latents that `choose` returns, level by level, the coarsest first.

        Both are "b levels·latent" with the finest level first.
        """
        gaussians: list[Gaussian] = []
        chosen: list[Tensor] = []
        for head, f in list(zip(self.heads, features, strict=True))[::-1]:
            seen = [f.mean((-2, -1), keepdim=True), *(z[:, :, None, None] for z in chosen if self.top_down)]
            out = head(torch.cat(seen, dim=1))
            gaussians.insert(0, Gaussian(out.mean.flatten(1), out.log_sigma.flatten(1)))
            chosen.insert(0, choose(gaussians[0]))
        mean = torch.cat([g.mean for g in gaussians], 1)
        return Gaussian(mean, torch.cat([g.log_sigma for g in gaussians], 1)), torch.cat(chosen, 1)


class LevelDecoder(nn.Module):
    """A decoder from coarse to fine that concatenates, at each level, the tiled latents, the level's own maps and the
    output of the next coarser level. own: channels of each level's own maps, finest first."""

    def __init__(self, own: Sequence[int], out_channels: int, config: JProbUNetConfig):
        super().__init__()
        self.latent = config.latent
        stage = partial(conv_stack, convs=config.convs, groups=config.groups)
        sizes = zip(own, (*config.channels[1:], 0), config.channels, strict=True)
        self.stages = nn.ModuleList([stage(extra + config.latent + coarser, c) for extra, coarser, c in sizes])
        self.head = nn.Conv2d(config.channels[0], out_channels, 1)

    def forward(self, z: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        """Map z "b levels·latent" and own maps "b c h w", finest first, to "b out h w" and the maps of all levels."""
        parts = torch.split(z, self.latent, dim=1)
        levels: list[Tensor] = []
        for stage, maps, part in list(zip(self.stages, own, parts, strict=True))[::-1]:
            tiled = part[:, :, None, None].expand(-1, -1, *maps.shape[-2:])
            levels.insert(0, stage(torch.cat([maps, tiled, *(twice(x) for x in levels[:1])], dim=1)))
        return self.head(levels[0]).float(), *levels


def coordinates(like: Tensor) -> Tensor:
    """Row and column of every position from -1 to 1, "b 2 h w"."""
    b, _, h, w = like.shape
    axes = [torch.linspace(-1, 1, n, device=like.device, dtype=like.dtype) for n in (h, w)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(b, -1, -1, -1)


@register("jprob-unet")
class JProbUNet(LatentSegmenter):
    """A latent vector per level with a flow for its prior; image and map are both decoded from it."""

    config_type: ClassVar[type[JProbUNetConfig]] = JProbUNetConfig
    accelerated_modules = ("encoder.path", "image_decoder", "mask_decoder")
    config: JProbUNetConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 12}

    def __init__(self, info: DatasetInfo, config: JProbUNetConfig):
        super().__init__(info, config)
        self.encoder = LevelEncoder(info.image_channels, config)
        self.posterior = LevelEncoder(info.image_channels + info.num_classes, config)
        self.flow = NICE(config.latent * len(config.channels), config.couplings, config.flow_width)
        joint = 2 if config.conditioning == "top-down" else 1
        self.mask_decoder = LevelDecoder([joint * c for c in config.channels], info.num_classes, config)
        self.image_decoder = LevelDecoder([2] * len(config.channels), info.image_channels, config)

    def encode(self, image: Tensor) -> Condition:
        """The features, finest first."""
        return Condition(tuple(self.encoder(self.padded(image))), tuple(image.shape[2:]))

    def decoded(self, condition: Condition, z: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the map and the image, "b l h w" and "b c h w"."""
        features = condition.tensors
        restored, *maps = self.image_decoder(z, *(coordinates(f) for f in features))
        if self.config.conditioning == "top-down":
            features = tuple(torch.cat(pair, dim=1) for pair in zip(features, maps, strict=True))
        return crop(self.mask_decoder(z, *features)[0], condition.size), crop(restored, condition.size)

    def choose(self, noise: Noise, rows: int) -> Choose:
        """Draws of all levels, coarsest first."""
        eps = standard_normal(noise, (rows, self.config.latent * len(self.config.channels)))
        queue = iter(torch.split(eps, self.config.latent, dim=1)[::-1])
        return lambda gaussian: gaussian.draw(next(queue))

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        _, u = self.encoder.descend(condition.tensors, self.choose(noise, len(condition.tensors[0])))
        return self.decoded(condition, self.flow.inverse(u))[0]

    def log_prior(self, condition: Condition, z: Tensor) -> Tensor:
        """log p(z | x), "b"."""
        moved, log_det = self.flow.forward(z)
        gaussian, _ = self.encoder.descend(
            condition.tensors, given(torch.split(moved, self.config.latent, dim=1)[::-1])
        )
        return gaussian.log_prob(moved) + log_det

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config, (h, w) = self.config, image.shape[-2:]
        target, seen, noise = self.observe(image, raters, mask, rater_count, keys)
        condition = self.encode(image)
        posterior, z = self.posterior.descend(self.posterior(seen), self.choose(noise, len(image)))
        logits, restored = self.decoded(condition, z)
        cross_entropy, absolute = target.cross_entropy(logits).mean(), (restored - image).abs().mean()
        kl = (posterior.log_prob(z) - self.log_prior(condition, z)).mean()
        total = cross_entropy + config.image_weight * absolute + config.beta * kl / (h * w)
        return {"loss": total, "cross_entropy": cross_entropy.detach(), "image": absolute.detach(), "kl": kl.detach()}
