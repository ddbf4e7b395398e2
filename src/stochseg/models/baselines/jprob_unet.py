"""Joint Probabilistic U-Net (Zhang et al., ACM MM 2022): latents at every level that must also explain the image.

Idea: image x and map y are generated together from latents z, 8 numbers at each of 5 levels, so that z holds what the
image shows and what raters make of it. Convolutional encoders predict a Gaussian q(z | x, y) and a Gaussian of the
image alone; a NICE flow f turns the second into the prior, which is not Gaussian. A mask decoder reads z and the
encoder's features of the image at every level, an image decoder reads only z.

    q(z | x, y) = N(m_q, s_q²),   p(z | x) = N(f(z); m_p(x), s_p(x)²) |det df/dz|
    loss = Σ_pixels |x - x̂(z)| + Σ_pixels CE(y, ŷ(x, z)) + β KL,   z ~ q,   β = 10
    KL ≈ log q(z | x, y) - log p(z | x)

Training sends draws of the posterior through f to the Gaussian of the image; sampling sends draws of that Gaussian
through the inverse of f. Both are one pass of a small network.

Differs from the original: written from its description, with our own choices. All 40 latents go through one flow, so
that levels may depend on each other; the KL is that of the flow, by one draw; z is tiled over its level, in the image
decoder with the coordinates of each position, because a tiled vector carries no location; the prior's encoder is that
of the U-Net; there is no batch normalization, log σ is limited, and cross-entropy over any number of classes replaces
its binary form. Its remedies against collapsing latents with few raters are omitted. The loss is divided by the number
of pixels, a constant; over several image channels the mean is taken. Void pixels carry no label in the posterior's
input.

Cost: the encoder once per image; a sample takes the inverse flow and the mask decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise
from stochseg.models.baselines.latent import Channels, LatentConfig, LatentSegmenter, draws_from
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks.denoisers import Condition
from stochseg.networks.flows import NICE
from stochseg.networks.latents import Gaussian, GaussianHead
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
    image_weight: float = Field(1.0, ge=0, description="weight of the image's L1 against the map's cross-entropy")
    beta: float = Field(10.0, ge=0, description="weight of the KL against sums over pixels")


class LevelEncoder(nn.Module):
    """A contracting path: its features, finest first, and a Gaussian over "b levels·latent", from each level's mean."""

    def __init__(self, in_channels: int, config: JProbUNetConfig):
        super().__init__()
        stage = partial(conv_stack, convs=config.convs, groups=config.groups)
        self.path = Contracting(in_channels, config.channels, stage)
        self.heads = nn.ModuleList([GaussianHead(c, config.latent) for c in config.channels])

    def forward(self, x: Tensor) -> tuple[list[Tensor], Gaussian]:
        features = self.path(x)
        levels = [head(f.mean((-2, -1), keepdim=True)) for head, f in zip(self.heads, features, strict=True)]
        mean = torch.cat([level.mean.flatten(1) for level in levels], 1)
        return features, Gaussian(mean, torch.cat([level.log_sigma.flatten(1) for level in levels], 1))


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

    def forward(self, own: Sequence[Tensor], z: Tensor) -> Tensor:
        """own: "b c h w" per level, finest first; z: "b levels·latent". Returns "b out h w"."""
        parts = torch.split(z, self.latent, dim=1)
        x = None
        for stage, maps, part in list(zip(self.stages, own, parts, strict=True))[::-1]:
            tiled = part[:, :, None, None].expand(-1, -1, *maps.shape[-2:])
            x = stage(torch.cat([maps, tiled] if x is None else [maps, tiled, twice(x)], dim=1))
        out: Tensor = self.head(x)
        return out.float()


def coordinates(like: Tensor) -> Tensor:
    """Row and column of every position from -1 to 1, "b 2 h w"."""
    b, _, h, w = like.shape
    axes = [torch.linspace(-1, 1, n, device=like.device, dtype=like.dtype) for n in (h, w)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(b, -1, -1, -1)


@register("jprob-unet")
class JProbUNet(LatentSegmenter):
    """A latent vector per level with a flow for its prior; image and map are both decoded from it."""

    config_type: ClassVar[type[JProbUNetConfig]] = JProbUNetConfig
    config: JProbUNetConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 12}

    def __init__(self, info: DatasetInfo, config: JProbUNetConfig):
        super().__init__(info, config)
        self.encoder = LevelEncoder(info.image_channels, config)
        self.posterior = LevelEncoder(info.image_channels + info.num_classes, config)
        self.flow = NICE(config.latent * len(config.channels), config.couplings, config.flow_width)
        self.mask_decoder = LevelDecoder(config.channels, info.num_classes, config)
        self.image_decoder = LevelDecoder([2] * len(config.channels), info.image_channels, config)

    def encode(self, image: Tensor) -> Condition:
        """The features, finest first, and the mean and log σ of the prior's Gaussian."""
        features, gaussian = self.encoder(self.padded(image))
        return Condition((*features, gaussian.mean, gaussian.log_sigma), tuple(image.shape[2:]))

    def logits(self, condition: Condition, z: Tensor) -> Tensor:
        return crop(self.mask_decoder(condition.tensors[:-2], z), condition.size)

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        gaussian = Gaussian(*condition.tensors[-2:])
        return self.logits(condition, self.flow.inverse(draws_from(noise)(gaussian)))

    def log_prior(self, condition: Condition, z: Tensor) -> Tensor:
        """log p(z | x), "b"."""
        moved, log_det = self.flow.forward(z)
        return Gaussian(*condition.tensors[-2:]).log_prob(moved) + log_det

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config, (h, w) = self.config, image.shape[-2:]
        target, seen, noise = self.observe(image, raters, mask, rater_count, keys)
        condition = self.encode(image)
        _, posterior = self.posterior(seen)
        z = draws_from(noise)(posterior)
        cross_entropy = target.cross_entropy(self.logits(condition, z)).mean()
        restored = self.image_decoder([coordinates(f) for f in condition.tensors[:-2]], z)[..., :h, :w]
        absolute = (restored - image).abs().mean()
        kl = (posterior.log_prob(z) - self.log_prior(condition, z)).mean()
        total = cross_entropy + config.image_weight * absolute + config.beta * kl / (h * w)
        return {"loss": total, "cross_entropy": cross_entropy.detach(), "image": absolute.detach(), "kl": kl.detach()}
