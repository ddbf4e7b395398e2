"""Agreement of raters: distances between their outlines, and Fleiss' kappa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from stochseg.errors import UserError


def surface_distance(first: Any, second: Any, spacing: Sequence[float] | None = None) -> float:
    """Average symmetric surface distance of two masks.

    The surface of a mask are its pixels with a neighbor outside, or at the border of the image. The distance is the
    mean, over the surface pixels of both, of the distance to the nearest surface pixel of the other.

    Args:
        first: "*space" bool.
        second: the same.
        spacing: millimeters per pixel along each axis; default: 1.

    Returns:
        The distance in millimeters or pixels; NaN if one mask is empty.

    Raises:
        UserError: if the shapes differ.

    >>> square = np.zeros((9, 9), bool)
    >>> square[2:5, 2:5] = True
    >>> surface_distance(square, square), surface_distance(square, np.roll(square, 1, 0), (2.0, 1.0))
    (0.0, 0.875)
    """
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    steps = (1.0,) * a.ndim if spacing is None else tuple(spacing)
    if a.shape != b.shape or len(steps) != a.ndim:
        raise UserError(f"surface_distance: expected masks and spacing of one shape, got {a.shape}, {b.shape}, {steps}")
    if not a.any() or not b.any():
        return float("nan")
    (box,) = ndimage.find_objects((a | b).astype(np.int8))  # outside there is no surface
    surfaces = [_surface(mask, box) for mask in (a, b)]
    distances = [
        ndimage.distance_transform_edt(~other, sampling=steps)[own] for own, other in (surfaces, surfaces[::-1])
    ]
    return float(np.concatenate(distances).mean())


def _surface(mask: npt.NDArray[np.bool_], box: tuple[slice, ...]) -> npt.NDArray[np.bool_]:
    part = mask[box]
    inner: npt.NDArray[np.bool_] = part & ~ndimage.binary_erosion(part)
    return inner


@dataclass(frozen=True)
class Votes:
    """Counts that Fleiss' kappa is made of; those of several images add up.

    disagreement: per label, the sum over pixels of n_l (n - n_l) / (n - 1), where n_l of n raters chose it; votes: per
    label, their number.
    """

    disagreement: npt.NDArray[np.float64]
    votes: npt.NDArray[np.float64]

    def __add__(self, other: Votes) -> Votes:
        return Votes(self.disagreement + other.disagreement, self.votes + other.votes)

    @property
    def kappa(self) -> float:
        """Fleiss' kappa of all labels; NaN if all votes are for one."""
        p = self.votes / self.votes.sum()
        expected = float(self.votes.sum() * (p * (1 - p)).sum())
        return 1 - float(self.disagreement.sum()) / expected if expected > 0 else float("nan")

    @property
    def kappa_per_class(self) -> npt.NDArray[np.float64]:
        """Kappa of each label against all others, "l"; NaN for a label without votes, or with all."""
        p = self.votes / self.votes.sum()
        expected = self.votes.sum() * p * (1 - p)
        return np.where(expected > 0, 1 - self.disagreement / np.where(expected > 0, expected, 1), np.nan)


def count_votes(maps: Any, num_classes: int, ignore: int | None = None) -> Votes:
    """Count the votes of raters for Fleiss' kappa (Fleiss 1971), whose number may differ between pixels and images.

    A pixel counts by its number of votes, as in Krippendorff's alpha; with equal numbers this is Fleiss' definition.

    Args:
        maps: "k *space", integers.
        num_classes: labels, the background included.
        ignore: label of void pixels, which are no votes; pixels with fewer than two votes do not count.

    Returns:
        The counts; `count_votes(a) + count_votes(b)` are those of both images.

    >>> maps = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]])
    >>> round(count_votes(maps, 2).kappa, 3)
    0.657
    """
    maps = np.asarray(maps)
    per_label = np.stack([(maps == label).sum(0) for label in range(num_classes)]).reshape(num_classes, -1)
    total = per_label.sum(0)
    per_label, total = per_label[:, total > 1].astype(np.float64), total[total > 1]
    return Votes((per_label * (total - per_label) / np.maximum(total - 1, 1)).sum(1), per_label.sum(1))
