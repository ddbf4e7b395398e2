"""Volumes as training needs them: their depths, and parts of consecutive slices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stochseg.data.protocol import SegmentationData, space_of
from stochseg.types import Example


def volume_depths(data: SegmentationData) -> list[int]:
    """Return the number of slices of each volume."""
    return [space_of(data, i)[0] for i in range(len(data))]


def cut_slices(example: Example, rng: np.random.Generator, depth: int) -> Example:
    """Return `depth` consecutive slices of a volume, at a random place.

    Args:
        example: The volume with its raters; it has at least `depth` slices.
        rng: Source of randomness.
        depth: Number of slices.

    Returns:
        The part, without copies.
    """
    start = int(rng.integers(example.image.shape[1] - depth + 1))
    part = slice(start, start + depth)
    return replace(example, image=example.image[:, part], raters=example.raters[:, part])
