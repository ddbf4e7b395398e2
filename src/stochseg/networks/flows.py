"""Normalizing flows on latent vectors: planar flows, whose parameters a network predicts per example, and NICE, which
is the same for all examples and has a cheap inverse."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.networks.blocks import zeroed

MIN_SLOPE = 1e-3
"""Smallest derivative of a planar flow along w; its logarithm is finite in float32."""


def planar(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Planar flow f(z) = z + û tanh(w·z + b) (Rezende and Mohamed 2015).

    û is u with its component along w changed so that w·û > -1, which makes f invertible. z, u, w: "b d"; b: "b".
    Returns f(z) "b d" and log |det df/dz| "b".
    """
    product = (w * u).sum(1)
    allowed = F.softplus(product) - 1 + MIN_SLOPE
    length = w.square().sum(1)
    u = u + ((allowed - product) / length.clamp(min=1e-12))[:, None] * w
    # w·û equals `allowed` up to rounding, unless w is too short to change u.
    slope = torch.where(length > 1e-12, allowed, (w * u).sum(1))
    h = torch.tanh((w * z).sum(1) + b)
    return z + u * h[:, None], torch.log1p((1 - h.square()) * slope)


class PlanarFlows(nn.Module):
    """`count` planar flows in sequence, whose u, w and b are predicted from features "b features"."""

    def __init__(self, features: int, latent: int, count: int):
        super().__init__()
        self.latent, self.count = latent, count
        width = count * latent
        self.parameters_of = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 2 * width + count))

    def forward(self, z: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map z "b d" and features "b features" to the last z "b d" and the sum of the log-determinants "b"."""
        flat: Tensor = self.parameters_of(features).to(z)  # z is float32 under autocast too
        log_det = torch.zeros_like(z[:, 0])
        for values in torch.unflatten(flat, 1, (self.count, -1)).unbind(1):
            u, w, b = torch.split(values, [self.latent, self.latent, 1], dim=1)
            z, step = planar(z, u, w, b[:, 0])
            log_det = log_det + step
        return z, log_det


class NICE(nn.Module):
    """f(z) = exp(s) · (`count` additive couplings of z) (Dinh et al. 2015), with its inverse. z: "b d", d > 1.

    A coupling adds a function of one half of the entries of z, even or odd, to the other half; the halves alternate.
    Its Jacobian is triangular with ones on the diagonal, so that only exp(s) changes volumes. All functions start as
    zero, so that f starts as the identity.
    """

    def __init__(self, latent: int, count: int = 4, width: int = 64):
        super().__init__()
        halves = [(latent + 1) // 2, latent // 2]  # even and odd entries
        self.shifts = nn.ModuleList()
        for i in range(count):
            changed, read = halves[i % 2], halves[1 - i % 2]
            hidden = [nn.Linear(read, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
            self.shifts.append(nn.Sequential(*hidden, zeroed(nn.Linear(width, changed))))
        self.log_scale = nn.Parameter(torch.zeros(latent))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(z) "b d" and log |det df/dz| "b"."""
        for i in range(len(self.shifts)):
            z = self._couple(z, i, 1.0)
        return z * self.log_scale.exp(), self.log_scale.sum().expand(len(z))

    def inverse(self, z: Tensor) -> Tensor:
        """Return the point "b d" that `forward` maps to z."""
        z = z * (-self.log_scale).exp()
        for i in reversed(range(len(self.shifts))):
            z = self._couple(z, i, -1.0)
        return z

    def _couple(self, z: Tensor, i: int, sign: float) -> Tensor:
        parts = [z[:, 0::2], z[:, 1::2]]
        parts[i % 2] = parts[i % 2] + sign * self.shifts[i](parts[1 - i % 2]).to(z)  # float32 under autocast too
        out = torch.empty_like(z)
        out[:, 0::2], out[:, 1::2] = parts
        return out
