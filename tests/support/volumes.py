"""Volumes of simple shapes, and samples of them."""

import numpy as np
import torch

from tests.support.samples import as_samples


def ellipsoid(semi, spacing, shape=None, center=None):
    """A mask "d h w" of an ellipsoid with these half axes in millimeters, in a volume that fits it or of this shape."""
    half = [int(radius / mm) + 2 for radius, mm in zip(semi, spacing, strict=True)]
    shape = shape or tuple(2 * side + 1 for side in half)
    center = center or tuple(side // 2 for side in shape)
    grid = np.indices(shape)
    return sum(((grid[i] - center[i]) * spacing[i] / semi[i]) ** 2 for i in range(3)) <= 1


def box(sides, margin=2):
    """A mask "d h w" of a box with these sides in voxels."""
    return np.pad(np.ones(sides, dtype=bool), margin)


def ball_samples(radii, spacing=(2.5, 1.0, 1.0), shape=(12, 28, 32), center=None, weights=None):
    """Samples "1 n d h w" of balls with these radii in millimeters; 0 is empty."""
    maps = [ellipsoid((max(r, 1e-6),) * 3, spacing, shape, center) & (r > 0) for r in radii]
    return as_samples(torch.from_numpy(np.stack(maps)).long()[None], 2, weights)
