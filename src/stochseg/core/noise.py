"""Where randomness enters: uniform numbers, and the draws made of them.

Everything random in `core` is a function of uniforms from a `Noise`. `SeededNoise` gives each row of a
batch a stream of its own, so that neither the batch size nor the order of images changes a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stochseg.errors import UserError

ORDERS = 4096
"""Orders of the n samples among which the places of an image choose."""


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
    its own key and on how many numbers it drew before, never on its neighbors or on the device."""

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


class LatinNoise:
    """Uniforms spread evenly over the n samples of an image (a Latin hypercube): whatever is asked for, of the n values
    that the samples receive at one place exactly one lies in each of the n equal parts of [0, 1).

    Each sample alone sees plain uniforms, so its own distribution is exact; together they cover the possible ones more
    evenly than independent draws. A sample thus depends on n, other than with `SeededNoise`.
    """

    def __init__(self, keys: Sequence[tuple[int, ...]], n: int, rows: range, device: torch.device | str = "cpu"):
        """keys: one an image; rows: which samples to serve, counted over all images (row r is of image r // n)."""
        self.n, self.rows, self.device = n, rows, device
        images = range(rows.start // n, (rows.stop - 1) // n + 1)
        self.shared = {i: np.random.default_rng((len(keys[i]), *keys[i])) for i in images}
        self.own = SeededNoise([(*keys[row // n], row % n) for row in rows])
        # A column an order. The table is made anew for every chunk (n × ORDERS numbers); beside that the work is in
        # proportion to what is asked for, however many chunks the n samples are served in.
        self.orders = {
            i: stream.permuted(np.tile(np.arange(n, dtype=np.int32)[:, None], ORDERS), axis=0)
            for i, stream in self.shared.items()
        }

    def uniform(self, shape: Sequence[int]) -> Tensor:
        u = self.own.uniform(shape).numpy().reshape(shape[0], -1)  # where in its part a value lies
        for image, stream in self.shared.items():
            order = stream.integers(ORDERS, size=u.shape[1], dtype=np.int32)
            # Turning the parts by a random number makes each sample's own part uniform, whatever the table.
            turn = stream.integers(self.n, size=u.shape[1], dtype=np.int32)
            first = image * self.n
            for row in range(max(first, self.rows.start), min(first + self.n, self.rows.stop)):
                part = (self.orders[image][row - first, order] + turn) % self.n
                u[row - self.rows.start] = (part + u[row - self.rows.start]) / self.n
        below_one = np.nextafter(np.float32(1), np.float32(0))
        return torch.from_numpy(np.minimum(u, below_one, out=u).reshape(tuple(shape))).to(self.device)


def _independent(keys: Sequence[tuple[int, ...]], n: int, rows: range, device: torch.device | str) -> SeededNoise:
    return SeededNoise([(*keys[row // n], row % n) for row in rows], device)


NOISES: dict[str, Callable[[Sequence[tuple[int, ...]], int, range, torch.device | str], Noise]] = {
    "independent": _independent,
    "latin": LatinNoise,
}
"""How the n samples of an image share randomness: (key an image, n, rows, device) -> the noise of these rows."""


def draw_uniform_labels(u: Tensor, num_classes: int) -> Tensor:
    """Labels of the uniform distribution by inverse CDF. u: any shape in [0, 1). Returns int64."""
    return (u * num_classes).long()


def draw_normal(u: Tensor) -> Tensor:
    """Standard normal numbers by inverse CDF. u: any shape in [0, 1), float32. All finite, within ±5.4.

    Half a unit of float32's uniforms, 2^-25, is added to u, exactly: no u is 0, and u and 1 - u are equally likely.
    """
    return math.sqrt(2) * torch.erfinv(2 * u - (1 - 2**-24))


def draw_categorical(log_p: Tensor, u: Tensor) -> Tensor:
    """One label a pixel by inverse CDF. log_p: "b l h w" (normalized up to rounding); u: "b h w". Returns "b h w".

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
