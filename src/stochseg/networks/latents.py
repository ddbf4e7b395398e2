"""Gaussian latents: diagonal normal distributions predicted by a network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Choose = Callable[["Gaussian"], Tensor]
"""Choice of the latent at a level of a hierarchy: a draw from the level's distribution or a given value."""

LOG_SIGMA_LIMIT = 7.0
"""Limit of |log σ|: the KL of two Gaussians is then finite in float32 for any output of the network."""


@dataclass(frozen=True)
class Gaussian:
    """One product of normal distributions per row; mean and log_sigma: "b ..."."""

    mean: Tensor
    log_sigma: Tensor

    def draw(self, eps: Tensor) -> Tensor:
        """Draw by reparametrization from standard normal numbers of the mean's shape."""
        return self.mean + self.log_sigma.exp() * eps.to(self.mean)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-density of z, "b"."""
        distance = (z - self.mean) * torch.exp(-self.log_sigma)
        return -(0.5 * distance**2 + self.log_sigma + 0.5 * math.log(2 * math.pi)).flatten(1).sum(1)

    def kl(self, other: Gaussian) -> Tensor:
        """Return KL(self ‖ other) in nats, "b"."""
        ratio = torch.exp(2 * (self.log_sigma - other.log_sigma))
        distance = ((self.mean - other.mean) * torch.exp(-other.log_sigma)) ** 2
        return (other.log_sigma - self.log_sigma + 0.5 * (ratio + distance - 1)).flatten(1).sum(1)


class GaussianHead(nn.Module):
    """1×1 convolution from features "b c h w" to a Gaussian over "b latent h w".

    log σ is limited smoothly: a hard limit would leave units beyond it without a gradient.
    """

    def __init__(self, in_channels: int, latent_channels: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 2 * latent_channels, 1)

    def forward(self, features: Tensor) -> Gaussian:
        mean, raw = self.conv(features).float().chunk(2, dim=1)
        return Gaussian(mean, LOG_SIGMA_LIMIT * torch.tanh(raw / LOG_SIGMA_LIMIT))
