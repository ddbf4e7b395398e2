"""Volumes of simple shapes, samples of them, and data and a model made of them."""

from typing import ClassVar

import numpy as np
import torch

from stochseg.models import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.types import DatasetInfo, Example
from tests.support.samples import as_samples

INFO = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3, class_names=("background", "nodule"))
SPACING = (2.5, 1.0, 1.0)


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


class Balls:
    """Volumes with three raters, who draw balls of different sizes or nothing."""

    info = INFO

    def __len__(self):
        return 3

    def __getitem__(self, i):
        raters = ball_samples([0, 4 + i, 7], SPACING, (8, 20, 20)).labels[0]
        noise = torch.rand(1, 8, 20, 20, generator=torch.Generator().manual_seed(i))
        return Example(noise / 2 + raters.float().mean(0) / 2, raters, f"scan-{i}", spacing=SPACING)


class Smaller(StochasticSegmenter):
    """Draws balls that are a little smaller than those of the raters."""

    name: ClassVar[str] = "smaller"

    def __init__(self):
        super().__init__(INFO, SegmenterConfig())
        self.anchor = torch.nn.Parameter(torch.zeros(()))  # gives the model a device

    def sample(self, image, n=16, **options):
        return as_samples(ball_samples([0, 4, 5, 6][:n], SPACING, image.shape[2:]).labels)

    def sample_counts(self, image, counts, options, **_):
        return {options.n: self.sample(image, options.n)}
