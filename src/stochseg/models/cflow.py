"""cFlow: a probabilistic U-Net with a flow for its posterior (Selvan et al., 2020).

Idea: as in the Probabilistic U-Net a latent vector z decides which reading of the image a sample is. Its posterior
given image and labels is not one Gaussian but a Gaussian sent through K planar flows whose parameters the posterior's
encoder predicts, so that it can be skewed or have several modes.

    z_0 ~ q0 = N(m(x, y), s(x, y)²),   z_k = z_{k-1} + û_k tanh(w_k·z_{k-1} + b_k),   w_k·û_k > -1
    loss = CE(y, decoder(x, z_K)) + β KL,   KL ≈ log q0(z_0) - sum_k log |det dz_k/dz_{k-1}| - log p(z_K | x)

with one draw z_0; cross-entropy is summed over pixels, and all is divided by their number: nats a pixel.
Sampling draws z from the Gaussian prior p(z | x): the flow serves training only.

Differences from the original: log q0 is evaluated at z_0, where the released code takes it at z_K or uses the KL of the
two Gaussians, neither of which is the KL of the flow. The U-Net is the one shared by all models here, flows are
predicted by one perceptron without batch normalisation, log σ is limited, and cross-entropy over any number of classes
replaces its binary form. Of its two flows the planar one is here, not Glow. Void pixels are no label for the posterior.

Cost: U-Net and prior once an image; a sample costs a few 1×1 convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Normal

from stochseg.core import Noise, SeededNoise, draw_normal
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_raters
from stochseg.models.chunks import Report, check_noise, draw_in_chunks
from stochseg.models.registry import register
from stochseg.networks import UNet, UNetConfig, pad_to_multiple
from stochseg.networks.denoisers import one_hot
from stochseg.networks.flows import PlanarFlows
from stochseg.types import DatasetInfo, Samples

LOG_SIGMA_LIMIT = 7.0
"""log σ stays within ± this: densities are then finite whatever the network says."""


class CFlowConfig(UNetConfig):
    """The U-Net's shape, which the encoders share, the latent vector and its flows. Defaults: the LIDC model."""

    multipliers: tuple[float, ...] = Field((1, 2, 4, 8), min_length=1, description="channels a level, in units of base")
    blocks: int = Field(1, ge=1, description="residual blocks a level in the encoder; the decoder has one more")
    attention: tuple[int, ...] = Field((), description="down-sampling factors with self-attention")
    convs: int = Field(3, ge=1, description="convolutions a level of the prior's and the posterior's encoder")
    latent: int = Field(6, ge=1, description="dimensions of z")
    flows: int = Field(4, ge=1, description="planar flows of the posterior")
    combining: int = Field(4, ge=2, description="1×1 convolutions from the features and z to the logits")
    beta: float = Field(1.0, ge=0, description="weight of the KL against the sum of cross-entropies")
    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels drawn at once, scaled for other sizes")


class NormalEncoder(nn.Module):
    """Convolutions and pooling, then the mean over all pixels: features "b f" and a normal distribution of z "b d"."""

    def __init__(self, in_channels: int, config: CFlowConfig):
        super().__init__()
        widths = [round(config.base * m) for m in config.multipliers]
        layers: list[nn.Module] = []
        for level, (a, b) in enumerate(pairwise([in_channels, *widths])):
            if level > 0:
                layers.append(nn.AvgPool2d(2))
            for c in [a] + [b] * (config.convs - 1):
                layers += [nn.Conv2d(c, b, 3, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.features = widths[-1]
        self.head = nn.Linear(self.features, 2 * config.latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Normal]:
        features = self.layers(x).mean((-2, -1))
        mean, raw = self.head(features).float().chunk(2, dim=1)
        # A hard limit would leave a σ beyond it without a gradient to come back by.
        log_sigma = LOG_SIGMA_LIMIT * torch.tanh(raw / LOG_SIGMA_LIMIT)
        return features, Normal(mean, log_sigma.exp(), validate_args=False)


class FlowPosterior(nn.Module):
    """q(z | x, y): a normal distribution sent through flows."""

    def __init__(self, in_channels: int, config: CFlowConfig):
        super().__init__()
        self.encoder = NormalEncoder(in_channels, config)
        self.flows = PlanarFlows(self.encoder.features, config.latent, config.flows)

    def forward(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """A draw z "b d" and its log-density "b"."""
        features, base = self.encoder(x)
        z0 = base.loc + base.scale * draw_normal(noise.uniform(base.loc.shape)).to(base.loc)
        z, log_det = self.flows(z0, features)
        return z, base.log_prob(z0).sum(1) - log_det


@register("cflow")
class CFlow(StochasticSegmenter):
    """One latent vector an image and sample, whose posterior is a flow."""

    Config: ClassVar[type[CFlowConfig]] = CFlowConfig

    def __init__(self, info: DatasetInfo, config: CFlowConfig):
        super().__init__(info, config)
        width = config.base
        self.unet = UNet(info.image_channels, width, config, timed=False)
        self.unet.head[-1].reset_parameters()  # features of zero would say nothing of the image
        self.prior = NormalEncoder(info.image_channels, config)
        self.posterior = FlowPosterior(info.image_channels + info.num_classes, config)
        # The first 1×1 convolution, of features joined with the tiled z, in two halves: that of the image runs once.
        self.from_features = nn.Conv2d(width, width, 1)
        self.from_latent = nn.Linear(config.latent, width, bias=False)
        middle = [layer for _ in range(config.combining - 2) for layer in (nn.Conv2d(width, width, 1), nn.ReLU())]
        self.combine = nn.Sequential(nn.ReLU(), *middle, nn.Conv2d(width, info.num_classes, 1))

    def encode(self, image: Tensor) -> tuple[Tensor, Normal]:
        """What the decoder needs of the image, "b width h w", and the prior. Once an image."""
        h, w = image.shape[-2:]
        padded = pad_to_multiple(image, self.config.stride)
        return self.from_features(self.unet(padded)[..., :h, :w]), self.prior(padded)[1]

    def decode(self, features: Tensor, z: Tensor) -> Tensor:
        """Logits "m l h w" of features "m width h w" and z "m d"."""
        return self.combine(features + self.from_latent(z)[:, :, None, None]).float()

    def loss(
        self, image: Tensor, labels: Tensor, mask: Tensor | None, raters: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        rows = torch.arange(len(image), device=image.device)
        rater = pick_raters(SeededNoise(keys).uniform((len(image), 1))[:, 0], raters.cpu())[:, 0].to(image.device)
        target, valid = labels[rows, rater], None if mask is None else mask[rows, rater]
        onehot = one_hot(target, self.num_classes)
        if valid is not None:
            onehot = onehot * valid[:, None]
        # Beyond the edge, as under void, there is no label.
        read = [pad_to_multiple(image, self.config.stride), pad_to_multiple(onehot, self.config.stride, "constant")]
        features, prior = self.encode(image)
        z, log_q = self.posterior(torch.cat(read, 1), SeededNoise([(*key, 0) for key in keys], image.device))
        terms = F.cross_entropy(self.decode(features, z), target, reduction="none")
        if valid is not None:
            terms = terms.masked_fill(~valid, 0.0)
        cross_entropy, kl = terms.mean(), (log_q - prior.log_prob(z).sum(1)).mean()
        loss = cross_entropy + self.config.beta * kl / image[0, 0].numel()
        return {"loss": loss, "cross_entropy": cross_entropy.detach(), "kl": kl.detach()}

    def check_options(self, options: SamplingOptions) -> None:
        check_noise(options)

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        features, prior = self.encode(image)

        def part(rows: Tensor, noise: Noise, report: Report) -> Tensor:
            mean, sigma = prior.loc[rows], prior.scale[rows]
            z = mean + sigma * draw_normal(noise.uniform(mean.shape)).to(mean)
            probabilities = self.decode(features[rows], z).softmax(1)
            report(0)
            return probabilities

        return draw_in_chunks(
            part, image, n, keys, seed, options, num_classes=self.num_classes, chunk=self.config.chunk
        )
