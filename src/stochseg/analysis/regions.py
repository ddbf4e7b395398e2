"""Measures of a region: area, diameters, perimeter, number of components.

A region is a mask "h w"; spacing is millimeters per pixel (row, column).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import ConvexHull
from scipy.spatial.distance import pdist

Mask = npt.NDArray[np.bool_]

EIGHT_NEIGHBORS = np.ones((3, 3), dtype=bool)  # pixels that share a corner are connected


def area(region: Mask, spacing: tuple[float, float] = (1.0, 1.0)) -> float:
    """Number of pixels times their area."""
    return float(region.sum()) * spacing[0] * spacing[1]


def equivalent_diameter(region: Mask, spacing: tuple[float, float] = (1.0, 1.0)) -> float:
    """Diameter of the disc with the same area."""
    return 2.0 * math.sqrt(area(region, spacing) / math.pi)


def longest_diameter(region: Mask, spacing: tuple[float, float] = (1.0, 1.0)) -> float:
    """Maximum Feret diameter of a connected component: the longest distance between two corners of its pixels.

    The result is exact. Corners count, not centers: a single pixel has the length of its diagonal. It is 0 for an empty
    region.
    """
    parts, _ = ndimage.label(region, EIGHT_NEIGHBORS)
    longest = 0.0
    for part, box in enumerate(ndimage.find_objects(parts), start=1):
        sides = [(side.stop - side.start) * mm for side, mm in zip(box, spacing, strict=True)]
        if math.hypot(*sides) > longest:  # the diagonal of the box bounds the diameter
            longest = max(longest, _feret(parts[box] == part, spacing))
    return longest


def _feret(region: Mask, spacing: tuple[float, float]) -> float:
    # Only the first and the last pixel of a row can be on the convex hull.
    rows = np.flatnonzero(region.any(1))
    first = region[rows].argmax(1)
    last = region.shape[1] - region[rows, ::-1].argmax(1)
    corners = [np.stack([rows + down, edge], 1) for down in (0, 1) for edge in (first, last)]
    points = np.concatenate(corners) * np.array(spacing)
    return float(pdist(points[ConvexHull(points).vertices]).max())


def perimeter(region: Mask, spacing: tuple[float, float] = (1.0, 1.0)) -> float:
    """Cauchy-Crofton estimate from the crossings of lines in four directions: rows, columns, both diagonals.

    It is accurate to a few percent for smooth outlines; the sides of an upright rectangle are 5% too short.
    """
    padded = np.pad(region, 1)
    steps = np.array([(0, 1), (1, 1), (1, 0), (1, -1)])
    crossings = np.array([_crossings(padded, down, right) for down, right in steps])
    direction = steps * spacing
    length = np.hypot(*direction.T)
    angle = np.arctan2(direction[:, 0], direction[:, 1])  # ascending, from 0 to below pi
    to_next = np.diff(angle, append=angle[0] + math.pi)
    sector = (to_next + np.roll(to_next, 1)) / 2
    gap = spacing[0] * spacing[1] / length  # between neighboring lines of one direction
    return float((sector * gap * crossings).sum() / 2)


def _crossings(padded: Mask, down: int, right: int) -> int:
    """Number of times that lines with the step (down, right) enter or leave the region."""
    h, w = padded.shape
    here = padded[: h - down, max(0, -right) : w - max(0, right)]
    there = padded[down:, max(0, right) : w - max(0, -right)]
    return int((here != there).sum())


def components(region: Mask, spacing: tuple[float, float] = (1.0, 1.0)) -> float:
    """Number of connected components; pixels that share a corner are connected."""
    return float(ndimage.label(region, EIGHT_NEIGHBORS)[1])
