"""Sources of uniform numbers, and the draws made of them.

Everything random in `core` is a function of uniforms from a `Noise`. `SeededNoise` gives each row of a batch its own
stream, so that neither the batch size nor the order of images changes a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stochseg.errors import UserError

BLOCK = 2**22
"""Numbers that a draw computes at once: its temporary values take several times the memory of the result."""
ORDERS = 4096
"""Number of random orders of the n samples; every place of an image uses one of them."""


class Noise(Protocol):
    """A source of uniforms."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Draw float32 in [0, 1) of this shape, fresh at every call; the first axis is the batch."""
        ...


class BatchNoise:
    """Uniforms from one torch generator for the whole batch.

    Args:
        generator: None is torch's global generator.
        device: of the generator and of the uniforms.
    """

    def __init__(self, generator: torch.Generator | None = None, device: torch.device | str = "cpu"):
        self.generator = generator
        self.device = device

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """See `Noise.uniform`."""
        return torch.rand(tuple(shape), generator=self.generator, device=self.device)


class SeededNoise:
    """One stream of uniforms per row, keyed by integers such as (seed, image, sample).

    What row i receives depends on its own key and on how many numbers it drew before, never on the other rows or on
    the device.

    Args:
        keys: one per row.
        device: where the uniforms are moved to.

    Example:
        >>> pair = SeededNoise([(0, 7), (0, 8)]).uniform((2, 3))
        >>> torch.equal(pair[1:], SeededNoise([(0, 8)]).uniform((1, 3)))
        True
    """

    def __init__(self, keys: Iterable[tuple[int, ...]], device: torch.device | str = "cpu"):
        # The length goes first because numpy's seeding does not distinguish (a, b) from (a, b, 0).
        self.streams = [np.random.default_rng((len(key), *key)) for key in keys]
        self.device = device

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """See `Noise.uniform`.

        Raises:
            UserError: if the first axis does not have one row per key.
        """
        if shape[0] != len(self.streams):
            raise UserError(f"noise: expected a shape of {len(self.streams)} rows, one per key, got {shape[0]}")
        rows = np.empty(tuple(shape), dtype=np.float32)
        for row, stream in zip(rows, self.streams, strict=True):
            stream.random(out=row, dtype=np.float32)
        return torch.from_numpy(rows).to(self.device)


class LatinNoise:
    """Uniforms spread evenly over the n samples of an image (a Latin hypercube).

    Of the n values that the samples receive at one place, exactly one lies in each of the n equal parts of [0, 1). Each
    sample alone sees plain uniforms, so its own distribution is exact; together the samples cover the possible label
    maps more evenly than independent draws. Unlike with `SeededNoise`, a sample depends on n.

    Args:
        keys: one per image.
        n: samples per image.
        rows: the samples to serve, counted over all images (row r belongs to image r // n).
        device: where the uniforms are moved to.
    """

    def __init__(self, keys: Sequence[tuple[int, ...]], n: int, rows: range, device: torch.device | str = "cpu"):
        self.n, self.rows, self.device = n, rows, device
        images = range(rows.start // n, (rows.stop - 1) // n + 1)
        self.shared = {i: np.random.default_rng((len(keys[i]), *keys[i])) for i in images}
        self.own = _independent(keys, n, rows, "cpu")
        # One column per order. The table (n × ORDERS numbers) is made anew for every chunk; all other work is in
        # proportion to the numbers drawn, however many chunks serve the n samples.
        self.orders = {
            i: stream.permuted(np.tile(np.arange(n, dtype=np.int32)[:, None], ORDERS), axis=0)
            for i, stream in self.shared.items()
        }

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """See `Noise.uniform`."""
        u = self.own.uniform(shape).numpy().reshape(shape[0], -1)  # the place of a value inside its part
        blocks = [slice(start, start + BLOCK) for start in range(0, u.shape[1], BLOCK)]
        for image, stream in self.shared.items():
            order = np.empty(u.shape[1], np.int16)
            for block in blocks:
                order[block] = stream.integers(ORDERS, size=len(order[block]), dtype=np.int32)
            first = image * self.n
            rows = range(max(first, self.rows.start), min(first + self.n, self.rows.stop))
            for block in blocks:
                # Rotating the parts by a random number makes the part of each sample uniform, whatever the table.
                turn = stream.integers(self.n, size=len(order[block]), dtype=np.int32)
                for row in rows:
                    own = u[row - self.rows.start, block]
                    part = (self.orders[image][row - first, order[block]] + turn) % self.n
                    own[:] = (part + own) / self.n
        below_one = np.nextafter(np.float32(1), np.float32(0))
        return torch.from_numpy(np.minimum(u, below_one, out=u).reshape(tuple(shape))).to(self.device)


def _independent(keys: Sequence[tuple[int, ...]], n: int, rows: range, device: torch.device | str) -> SeededNoise:
    return SeededNoise([(*keys[row // n], row % n) for row in rows], device)


NOISES: dict[str, Callable[[Sequence[tuple[int, ...]], int, range, torch.device | str], Noise]] = {
    "independent": _independent,
    "latin": LatinNoise,
}
"""Ways in which the n samples of an image share randomness: (one key per image, n, rows, device) -> their noise."""


def draw_uniform_labels(u: Tensor, num_classes: int) -> Tensor:
    """Draw labels of the uniform distribution by inverse CDF.

    Args:
        u: uniforms in [0, 1) of any shape.
        num_classes: L.

    Returns:
        int64 of the shape of u.
    """
    return (u * num_classes).long()


def draw_normal(u: Tensor) -> Tensor:
    """Draw standard normal numbers by inverse CDF; all are finite, within ±5.4.

    Half a unit of float32's uniforms, 2^-25, is added to u, exactly: no u is 0, and u and 1 - u are equally likely.

    Args:
        u: float32 uniforms in [0, 1) of any shape.

    Returns:
        float32 of the shape of u.
    """
    return math.sqrt(2) * torch.erfinv(2 * u - (1 - 2**-24))


def draw_categorical(log_p: Tensor, u: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """Draw one label per pixel by inverse CDF.

    The running sum is kept in float64 and compared with u times its own end: a label of probability zero is never
    drawn, whatever the rounding of `log_p`.

    Args:
        log_p: "b l *space" log-probabilities, normalized up to rounding.
        u: "b *space" uniforms in [0, 1).
        dtype: of the labels.

    Returns:
        "b *space" labels.

    Example:
        >>> log_p = torch.tensor([0.2, 0.8]).log().view(1, 2, 1).expand(1, 2, 3)
        >>> draw_categorical(log_p, torch.tensor([[0.1, 0.3, 0.9]]))
        tensor([[0, 1, 1]])
    """
    if u.numel() <= BLOCK:
        return _draw_block(log_p, u).to(dtype)
    drawn, count = torch.empty(u.shape, dtype=dtype, device=u.device), -(-u.numel() // BLOCK)
    for out, *block in zip(drawn.chunk(count, 1), log_p.chunk(count, 2), u.chunk(count, 1), strict=True):
        out.copy_(_draw_block(*block))
    return drawn


def _draw_block(log_p: Tensor, u: Tensor) -> Tensor:
    p = log_p.exp()
    labels = range(p.shape[1])
    exact = torch.float32 if u.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
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
