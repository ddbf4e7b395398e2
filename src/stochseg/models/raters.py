"""Random choices of training: which rater's label map, and which time step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core import SeededNoise
from stochseg.models.sampling import Key


def pick_raters(u: Tensor, rater_count: Tensor, draws: int = 1) -> Tensor:
    """Index of the rater of each draw, "b draws": uniform for a single draw, different raters in turn for several.

    u: "b" in [0, 1); rater_count: "b".
    """
    count = rater_count[:, None]
    return ((u[:, None] + torch.arange(draws) / count) % 1.0 * count).long()


def pick_pairs(
    keys: Sequence[Key], rater_count: Tensor, draws: int, num_timesteps: int, t_power: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """`draws` pairs of a rater and a time step per image: image, rater and t of each, "b·draws" on the CPU.

    The pairs of an image take different raters in turn and time steps spread evenly over 1..T; each pair is distributed
    as a single one, t/T as u^(1/t_power).
    """
    u_rater, u_time = SeededNoise(keys).uniform((len(keys), 2)).unbind(1)
    spread = (u_time[:, None] + torch.arange(draws) / draws) % 1.0
    t = 1 + (spread.double() ** (1 / t_power) * num_timesteps).long()
    rows = torch.arange(len(keys)).repeat_interleave(draws)
    return rows, pick_raters(u_rater, rater_count.cpu(), draws).flatten(), t.flatten()


def one_rater(
    raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
) -> tuple[Tensor, Tensor | None]:
    """The label map of a random rater per image and its mask, "b *space"; arguments are those of `loss`."""
    u = SeededNoise(keys).uniform((len(raters), 1))[:, 0]
    rater = pick_raters(u, rater_count.cpu())[:, 0].to(raters.device)
    rows = torch.arange(len(raters), device=raters.device)
    return raters[rows, rater], None if mask is None else mask[rows, rater]
