"""Where randomness enters: uniform numbers, and the draws made of them.

Everything random in `core` is a function of uniforms from a `Noise`. `SeededNoise` gives each row of a
batch a stream of its own, so that neither the batch size nor the order of images changes a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stochseg.errors import UserError


class Noise(Protocol):
    """A source of uniforms."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """float32 in [0, 1) of this shape, fresh at every call; the first axis is the batch."""
        ...


class BatchNoise:
    """Uniforms from a torch generator (or the global one): the shape decides what is drawn."""

    def __init__(self, generator: torch.Generator | None = None, device: torch.device | str = "cpu"):
        self.generator = generator
        self.device = device

    def uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.rand(tuple(shape), generator=self.generator, device=self.device)


class SeededNoise:
    """One stream a row, keyed by whole numbers such as (seed, image, sample): what row i receives depends on
    its own key and on how many numbers it drew before, never on its neighbours or on the device."""

    def __init__(self, keys: Iterable[tuple[int, ...]], device: torch.device | str = "cpu"):
        # The length goes first because numpy's seeding does not tell (a, b) from (a, b, 0).
        self.streams = [np.random.default_rng((len(key), *key)) for key in keys]
        self.device = device

    def uniform(self, shape: Sequence[int]) -> Tensor:
        if shape[0] != len(self.streams):
            raise UserError(f"noise was made for {len(self.streams)} rows, asked for {shape[0]}")
        rows = np.empty(tuple(shape), dtype=np.float32)
        for row, stream in zip(rows, self.streams, strict=True):
            row[...] = stream.random(row.shape, dtype=np.float32)
        return torch.from_numpy(rows).to(self.device)


def draw_uniform_labels(u: Tensor, num_classes: int) -> Tensor:
    """Labels of the uniform distribution by inverse CDF. u: any shape in [0, 1). Returns int64."""
    return (u * num_classes).long()


def draw_categorical(log_p: Tensor, u: Tensor) -> Tensor:
    """One label a pixel by inverse CDF. log_p: "b l h w" (normalised up to rounding); u: "b h w". Returns "b h w".

    The running sum is kept in float64 and compared with u times its own end: a label of probability zero
    is never drawn, whatever the rounding of `log_p`.
    """
    p = log_p.exp()
    labels = range(p.shape[1])
    exact = torch.float32 if u.device.type == "mps" else torch.float64  # which Apple's GPUs do not have
    total = torch.zeros(u.shape, dtype=exact, device=u.device)
    for k in labels:
        total += p[:, k]
    threshold = total.mul_(u)
    cumulative = torch.zeros_like(threshold)
    drawn = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    for k in labels[:-1]:
        cumulative += p[:, k]
        drawn += cumulative <= threshold
    return drawn
