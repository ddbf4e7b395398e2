"""Normalising flows on latent vectors, with parameters that a network predicts for each example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST_SLOPE = 1e-3
"""The least derivative of a planar flow along w: its logarithm stays finite in float32."""


def planar(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """f(z) = z + û tanh(w·z + b) (Rezende and Mohamed 2015), and log |det df/dz| "b". z, u, w: "b d"; b: "b".

    û is u with its part along w changed so that w·û > -1, without which f is not invertible.
    """
    product = (w * u).sum(1)
    allowed = F.softplus(product) - 1 + LEAST_SLOPE
    u = u + ((allowed - product) / w.square().sum(1).clamp(min=1e-12))[:, None] * w
    h = torch.tanh((w * z).sum(1) + b)
    return z + u * h[:, None], torch.log1p((1 - h.square()) * (w * u).sum(1))


class PlanarFlows(nn.Module):
    """`count` planar flows in a row, whose u, w and b are predicted from features: "b features" and z "b d" in."""

    def __init__(self, features: int, latent: int, count: int):
        super().__init__()
        self.latent, self.count = latent, count
        width = count * latent
        self.parameters_of = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 2 * width + count))

    def forward(self, z: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The last z, "b d", and the sum of the log-determinants, "b"."""
        flat = self.parameters_of(features).to(z)  # z is float32 under autocast too
        log_det = torch.zeros_like(z[:, 0])
        for values in flat.unflatten(1, (self.count, -1)).unbind(1):
            u, w, b = values.split([self.latent, self.latent, 1], dim=1)
            z, step = planar(z, u, w, b[:, 0])
            log_det = log_det + step
        return z, log_det
