"""Raters: the random choices of training, which are the label map of one rater and a time step, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.core import Noise, SeededNoise
from stochseg.errors import UserError
from stochseg.models.sampling import Keys


def pick_raters(u: Tensor, rater_count: Tensor, draws: int = 1) -> Tensor:
    """Index of the rater of each draw, "b draws": uniform for a single draw, different raters in turn for several.

    u: "b" in [0, 1); rater_count: "b".
    """
    count = rater_count[:, None]
    return ((u[:, None] + torch.arange(draws) / count) % 1.0 * count).long()


@dataclass(frozen=True)
class Target:
    """The label map of one rater per row. labels: "b h w"; mask: "b h w", False = void, or None; rater: "b", its place
    in the names of the data set's raters, -1 if unknown, or None."""

    labels: Tensor
    mask: Tensor | None
    rater: Tensor | None = None

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Cross-entropy in nats per pixel, "b h w"; zero where void."""
        terms = F.cross_entropy(logits.float(), self.labels, reduction="none")
        return terms if self.mask is None else terms.masked_fill(~self.mask, 0.0)


def one_rater(
    raters: Tensor, mask: Tensor | None, rater_count: Tensor, noise: Noise, rater_index: Tensor | None = None
) -> Target:
    """The label map of a random rater per image; the other arguments are those of `loss` and `loss_by_rater`."""
    u = noise.uniform((len(raters), 1))[:, 0].cpu()
    rows = torch.arange(len(raters), device=raters.device)
    return _select(raters, mask, rows, pick_raters(u, rater_count.cpu())[:, 0], rater_index)


def draw_pairs(
    raters: Tensor,
    mask: Tensor | None,
    rater_count: Tensor,
    keys: Keys,
    draws: int,
    rater_index: Tensor | None = None,
) -> tuple[Tensor, Target, Tensor, SeededNoise]:
    """`draws` pairs of a rater and a time per image, as rows "d"; the other arguments are those of `loss_by_rater`.

    The pairs of an image take different raters in turn and times spread evenly; each is distributed as a single one.
    Returns the image of each row, its label map, its time in [0, 1) on the CPU, and noise with a stream per row.
    """
    u_rater, u_time = SeededNoise(keys).uniform((len(keys), 2)).unbind(1)
    time = (u_time[:, None] + torch.arange(draws) / draws) % 1.0
    rows = torch.arange(len(keys), device=raters.device).repeat_interleave(draws)
    target = _select(raters, mask, rows, pick_raters(u_rater, rater_count.cpu(), draws).flatten(), rater_index)
    noise = SeededNoise([(*key, j) for key in keys for j in range(draws)], raters.device)
    return rows, target, time.flatten(), noise


def time_steps(u: Tensor, num_timesteps: int, t_power: float = 1.0, pure: float = 0.0) -> Tensor:
    """Time steps in 1..T from times u in [0, 1): t = T for the share `pure`, else t/T distributed as u^(1/t_power)."""
    rest = (u.double() / max(1 - pure, 1e-9)).clamp(max=1)
    return (1 + (rest ** (1 / t_power) * num_timesteps).long()).clamp(max=num_timesteps)


def _select(raters: Tensor, mask: Tensor | None, rows: Tensor, rater: Tensor, index: Tensor | None) -> Target:
    rater = rater.to(raters.device)
    person = None if index is None else index.to(raters.device)[rows, rater]
    return Target(raters[rows, rater], None if mask is None else mask[rows, rater], person)


def rater_number(rater: str, names: Sequence[str], model: str) -> int:
    """The place of a rater, given by name or place, among the names that a model knows.

    Raises:
        UserError: if the model knows no raters, or not this one.

    >>> rater_number("ben", ["ana", "ben"], "ccdm-fast"), rater_number("0", ["ana", "ben"], "ccdm-fast")
    (1, 0)
    """
    if not names:
        raise UserError(
            f"rater: model {model!r} does not know its raters apart, got {rater!r}; omit it, or train a model of "
            "raters (ccdm-fast with model.options.rater_conditioning=true) on data with named raters"
        )
    if rater in names:
        return names.index(rater)
    if rater.isdecimal() and int(rater) < len(names):
        return int(rater)
    known = ", ".join(f"{place}: {name}" for place, name in enumerate(names))
    raise UserError(f"unknown rater {rater!r}; expected one of those of the training, by name or number ({known})")
