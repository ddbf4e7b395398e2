"""The part of a scan that a model sees: cut and resampled from the scan, scaled, and pasted back.

A scan is a stack "s h w …". A grid has one `GridAxis` per axis; its pixels lie between the scan's voxels if it is
resampled, and outside the scan near its border, where the nearest voxels are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.inference.result import LabelArray, StackResult
from stochseg.types import Preparation, Window

Floats: TypeAlias = npt.NDArray[np.float32]
Positions: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
SAME = 2e-3
"""Relative difference of spacings below which a scan is not resampled."""


@dataclass(frozen=True)
class GridAxis:
    """Pixels of a grid along one axis of a scan.

    first: position of the first pixel, in voxels of the scan; step: voxels from a pixel to the next; length: number of
    pixels; limits: first and last + 1 voxel of the scan that results may cover.
    """

    first: float
    step: float
    length: int
    limits: tuple[int, int]

    @classmethod
    def around(cls, center: int, length: int, size: int, step: float = 1.0) -> GridAxis:
        """Place `length` pixels around a voxel of an axis of `size` voxels; some may lie outside the scan."""
        return cls(center - length // 2 * step, step, length, (0, size))

    @classmethod
    def inside(cls, center: int, below: int, above: int, size: int, step: float = 1.0) -> GridAxis:
        """Place a pixel on a voxel and up to `below` and `above` next to it, none of them outside the scan."""
        below = min(below, math.floor((center + 0.5) / step))
        above = min(above, math.floor((size - 0.5 - center) / step))
        return cls(center - below * step, step, below + above + 1, (0, size))

    @classmethod
    def within(cls, start: int, stop: int, step: float = 1.0) -> GridAxis:
        """Cover the voxels from start to stop - 1, and no others."""
        length = max(1, round((stop - start) / step))
        return cls((start + stop - 1 - (length - 1) * step) / 2, step, length, (start, stop))

    @property
    def positions(self) -> Positions:
        """Position of every pixel, in voxels."""
        return self.first + self.step * np.arange(self.length, dtype=np.float64)

    @property
    def voxels(self) -> tuple[int, int]:
        """First and last + 1 voxel of the scan whose nearest pixel is in the grid."""
        start, stop = (math.ceil(self.first + self.step * (end - 0.5)) for end in (0, self.length))
        low, high = self.limits
        return max(low, start), min(high, stop)

    @property
    def pixels(self) -> Positions:
        """Position of every voxel of `voxels` in the grid, in pixels."""
        return (np.arange(*self.voxels, dtype=np.float64) - self.first) / self.step

    @property
    def nearest(self) -> Indices:
        """The pixel nearest to every voxel of `voxels`."""
        return np.floor(self.pixels + 0.5).astype(np.int64).clip(0, self.length - 1)

    def is_padded(self, size: int) -> bool:
        """Whether pixels lie outside a scan of `size` voxels."""
        return bool(self.positions[0] < -0.5 or self.positions[-1] > size - 0.5)


Grid = tuple[GridAxis, GridAxis, GridAxis]
"""Slices, rows and columns."""


def steps(preparation: Preparation, spacing: Sequence[float]) -> tuple[float, float, float]:
    """Voxels of a scan of this spacing (slice, row, column) per pixel of the model; 1 where it is not resampled."""
    wanted = preparation.spacing or ()
    targets = [*[None] * (3 - len(wanted)), *wanted]
    ratios = [1.0 if target is None else target / own for target, own in zip(targets, spacing, strict=True)]
    slices, rows, columns = (1.0 if abs(ratio - 1) < SAME else ratio for ratio in ratios)
    return slices, rows, columns


# --- from the scan to the model -------------------------------------------------------------------------


def cut(values: npt.NDArray[Any], grid: Grid) -> Floats:
    """Return the intensities of a scan "s h w …" at the pixels of a grid, interpolated linearly."""
    for axis, part in enumerate(grid):
        values = _interpolate(values, part.positions, axis)
    return np.ascontiguousarray(values, np.float32)


def scale(values: Floats, preparation: Preparation) -> Floats:
    """Scale the intensities of slices "s h w …" as the training images were scaled."""
    if preparation.scale == "none":
        return values
    exact = values.astype(np.float64)
    if preparation.window is not None:
        low, high = (np.float64(end) for end in preparation.window)
    else:
        own = tuple(range(1, values.ndim))
        low, high = (end(exact, axis=own, keepdims=True) for end in (np.min, np.max))
    scaled = (exact.clip(low, high) - low) / np.where(high > low, high - low, 1.0) * 255
    return np.rint(scaled).astype(np.float32)


def _interpolate(values: npt.NDArray[Any], positions: Positions, axis: int) -> npt.NDArray[Any]:
    """Interpolate linearly along an axis; positions outside take the value of the nearest end."""
    positions = positions.clip(0, values.shape[axis] - 1)
    below = np.floor(positions).astype(np.int64)
    lower = values.take(below, axis)
    if (below == positions).all():
        return lower
    upper = values.take((below + 1).clip(max=values.shape[axis] - 1), axis)
    part = (positions - below).astype(np.float32).reshape(-1, *[1] * (values.ndim - axis - 1))
    return lower.astype(np.float32) * (1 - part) + upper.astype(np.float32) * part


# --- from the model to the scan -------------------------------------------------------------------------


def paste(result: StackResult, grid: Grid) -> StackResult:
    """Return a result on a grid, "s n h w", on the voxels of the scan that the grid covers.

    Labels are those of the nearest pixel, mean probabilities are interpolated linearly; nothing outside the scan is
    kept.
    """
    slices, rows, columns = grid
    labels = paste_labels(result.labels, grid)
    mean: npt.NDArray[Any] = result.mean
    for axis, part in zip((0, 2, 3), grid, strict=True):
        mean = _interpolate(mean, part.pixels, axis)
    window = result.window and _window_of_voxels(result.window, (rows, columns))
    return StackResult(labels, mean, result.weights[slices.nearest], result.evaluations, window)


def paste_labels(labels: LabelArray, grid: Grid) -> LabelArray:
    """Return label maps on a grid, "s m h w", on the voxels of the scan that the grid covers."""
    slices, rows, columns = grid
    return labels[slices.nearest][:, :, rows.nearest][..., columns.nearest]


def _window_of_voxels(window: Window, axes: Sequence[GridAxis]) -> Window | None:
    """Convert the part of a grid that the model labels to the voxels that the grid covers; None: all of them."""
    ends = []
    for (start, stop), axis in zip(window, axes, strict=True):
        inside = np.flatnonzero((axis.nearest >= start) & (axis.nearest < stop))
        ends.append((int(inside[0]), int(inside[-1]) + 1))
    whole = all(end == (0, len(axis.nearest)) for end, axis in zip(ends, axes, strict=True))
    return None if whole else tuple(ends)
