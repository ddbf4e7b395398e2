"""Random choices of training: the label map of one rater, and a time step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.core import Noise, SeededNoise
from stochseg.models.sampling import Keys
from stochseg.networks.shapes import one_hot, pad_to_multiple


def pick_raters(u: Tensor, rater_count: Tensor, draws: int = 1) -> Tensor:
    """Index of the rater of each draw, "b draws": uniform for a single draw, different raters in turn for several.

    u: "b" in [0, 1); rater_count: "b".
    """
    count = rater_count[:, None]
    return ((u[:, None] + torch.arange(draws) / count) % 1.0 * count).long()


def spread_draws(keys: Keys, rater_count: Tensor, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    """`draws` pairs of a rater and a time in [0, 1) per image: image, rater and time of each, "b·draws" on the CPU.

    The pairs of an image take different raters in turn and times spread evenly; each is distributed as a single one.
    """
    u_rater, u_time = SeededNoise(keys).uniform((len(keys), 2)).unbind(1)
    time = (u_time[:, None] + torch.arange(draws) / draws) % 1.0
    rows = torch.arange(len(keys)).repeat_interleave(draws)
    return rows, pick_raters(u_rater, rater_count.cpu(), draws).flatten(), time.flatten()


def pick_pairs(
    keys: Keys, rater_count: Tensor, draws: int, num_timesteps: int, t_power: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """`spread_draws` with time steps in 1..T, t/T distributed as u^(1/t_power)."""
    rows, rater, u = spread_draws(keys, rater_count, draws)
    return rows, rater, 1 + (u.double() ** (1 / t_power) * num_timesteps).long()


@dataclass(frozen=True)
class Target:
    """The label map of one rater per image. labels: "b h w"; mask: "b h w", False = void, or None."""

    labels: Tensor
    mask: Tensor | None

    def one_hot(self, num_classes: int, multiple: int) -> Tensor:
        """One-hot map "b l h w", padded to a multiple; all zero at void pixels and in the padding."""
        onehot = one_hot(self.labels, num_classes)
        if self.mask is not None:
            onehot = onehot * self.mask[:, None]
        return pad_to_multiple(onehot, multiple, mode="constant")

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Cross-entropy in nats per pixel, "b h w"; zero where void."""
        terms = F.cross_entropy(logits.float(), self.labels, reduction="none")
        return terms if self.mask is None else terms.masked_fill(~self.mask, 0.0)


def one_rater(raters: Tensor, mask: Tensor | None, rater_count: Tensor, noise: Noise) -> Target:
    """The label map of a random rater per image; the other arguments are those of `loss`."""
    u = noise.uniform((len(raters), 1))[:, 0].cpu()
    rater = pick_raters(u, rater_count.cpu())[:, 0].to(raters.device)
    rows = torch.arange(len(raters), device=raters.device)
    return Target(raters[rows, rater], None if mask is None else mask[rows, rater])
