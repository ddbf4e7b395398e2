"""The fingerprint of a data set of volumes, and the patch size that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stochseg.data.protocol import SegmentationData, WindowedData, spread
from stochseg.errors import UserError
from stochseg.types import Spacing

MAX_CASES = 20
"""Volumes that are measured, evenly spaced."""
MAX_VALUES = 100_000
"""Intensities that are kept per volume and channel."""
ALIGN = 8
"""Rows and columns of a patch are multiples of this, unless the volumes are smaller."""
PERCENTILES = (0.5, 50.0, 99.5)


@dataclass(frozen=True)
class Fingerprint:
    """Medians over volumes. Intensities are normalized.

    shape: slices, rows, columns; spacing: millimeters between them, 1 if unknown; intensities: per channel, the
    percentiles 0.5, 50 and 99.5 of voxels that a rater has marked (of all if none is).
    """

    shape: tuple[int, int, int]
    spacing: Spacing
    intensities: tuple[tuple[float, ...], ...]


def measure_fingerprint(data: SegmentationData) -> Fingerprint:
    """Measure some volumes of a split.

    Args:
        data: The split.

    Returns:
        Its fingerprint.

    Raises:
        UserError: The data are images.

    Example:
        >>> from stochseg.data import PhantomVolumes
        >>> measure_fingerprint(PhantomVolumes("train", size=32, slices=6, count=3)).shape
        (6, 32, 32)
    """
    if data.info.spatial_dims != 3:
        raise UserError("fingerprint: expected volumes, got images; images are fitted with data.size")
    shapes, spacings, values = [], [], []
    for i in spread(len(data), MAX_CASES):
        example = data[i]
        shapes.append(data.space(i) if isinstance(data, WindowedData) else tuple(example.image.shape[1:]))
        spacings.append(example.spacing or (1.0, 1.0, 1.0))
        marked = ((example.raters != 0) & (example.raters != data.info.ignore)).any(0)
        voxels = example.image[:, marked] if bool(marked.any()) else example.image.flatten(1)
        values.append(voxels[:, :: max(1, voxels.shape[1] // MAX_VALUES)].numpy())
    slices, rows, columns = (int(n) for n in np.median(shapes, 0))
    found = np.percentile(np.concatenate(values, 1), PERCENTILES, axis=1).T
    spacing = tuple(np.median(spacings, 0).tolist())
    return Fingerprint((slices, rows, columns), spacing, tuple(tuple(each) for each in found.tolist()))


def plan_patch(fingerprint: Fingerprint, voxels: int) -> tuple[int, int, int]:
    """Choose the size of patches to train on: a cube in millimeters as large as memory allows, cut to the volumes.

    Args:
        fingerprint: Of the data.
        voxels: The most voxels of a patch, which bounds the memory of a training step.

    Returns:
        Slices, rows, columns.

    Raises:
        UserError: There is not even room for 8 × 8 voxels.

    Example:
        >>> ct = Fingerprint((300, 512, 512), (1.0, 0.75, 0.75), ((0.0, 0.0, 1.0),))
        >>> plan_patch(ct, 2**17)
        (41, 48, 48)
    """
    if voxels < ALIGN**2:
        raise UserError(f"patch: expected room for at least {ALIGN**2} voxels, got {voxels}")
    low, high = 0.0, max(n * mm for n, mm in zip(fingerprint.shape, fingerprint.spacing, strict=True))
    for _ in range(60):
        middle = (low + high) / 2
        fits = math.prod(_sides(fingerprint, middle)) <= voxels
        low, high = (middle, high) if fits else (low, middle)
    return _sides(fingerprint, high if math.prod(_sides(fingerprint, high)) <= voxels else low)


def _sides(fingerprint: Fingerprint, edge: float) -> tuple[int, int, int]:
    """Slices, rows and columns of a cube of this edge in millimeters."""
    slices, *plane = (edge / mm for mm in fingerprint.spacing)
    depth, *size = fingerprint.shape
    aligned = (n if side >= n else max(ALIGN, int(side) // ALIGN * ALIGN) for side, n in zip(plane, size, strict=True))
    rows, columns = (min(n, side) for side, n in zip(aligned, size, strict=True))
    return min(depth, max(1, int(slices))), rows, columns
