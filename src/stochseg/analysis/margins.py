"""Conformal margins: a band around the outline of a class that contains the outline of a rater.

Bands are nested. At depth d up to 1 - 2 FLOOR the outer region is where the mean probability p of the class is at least
(1 - d) / 2, and the inner region where it is above (1 + d) / 2. Beyond this depth, where p says no more, both move by a
distance: (d - 1 + 2 FLOOR) times the radius of a disk or ball of the size of the widest level set. A map fits a band if
it contains the inner region and lies in the outer one, so that its outline is inside the band. For an empty map the
inner region must be empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from stochseg.analysis.measurement import Values
from stochseg.errors import UserError

FLOOR = 0.01
"""Probabilities below it, or above 1 minus it, are not told apart: distances take over."""
LAST_LEVEL = 1 - 2 * FLOOR
"""Depth at which levels end and distances start."""
OUTSIDE, BAND, INSIDE = 0, 1, 2
"""Values of a margin map."""

Map = npt.NDArray[np.bool_]


def margin_depths(probability: npt.ArrayLike | Tensor, spacing: Sequence[float] | None = None) -> tuple[Values, Values]:
    """Compute the depths at which pixels enter the outer region and leave the inner region.

    Args:
        probability: "*space", the mean probability of a class.
        spacing: size of a pixel along each axis; only ratios matter.

    Returns:
        Two arrays "*space": the depth from which on a pixel belongs to the outer region, 0 where the class is the
        likelier one; and the depth from which on it is not in the inner region, 0 where the class is the unlikelier
        one. Both may be infinite: outside an empty widest level set, and inside one that has no outside.

    >>> outer, inner = margin_depths([0.0, 0.0, 0.2, 0.6, 0.9])
    >>> outer.round(2).tolist(), inner.round(2).tolist()
    ([2.31, 1.65, 0.6, 0.0, 0.0], [0.0, 0.0, 0.0, 0.2, 0.8])
    """
    p = np.asarray(probability, np.float64)
    size = tuple(spacing) if spacing is not None else (1.0,) * p.ndim
    if p.ndim == 0 or len(size) != p.ndim:
        raise UserError(f"margin_depths: expected a map and one spacing per axis, got {p.ndim} axes and {spacing}")
    radius = _radius(int((p >= FLOOR).sum()) * math.prod(size), p.ndim)
    return _depths(p, size, radius), _depths(1 - p, size, radius)


def _depths(p: Values, size: Sequence[float], radius: float) -> Values:
    """Depths of the outer region of a class of probability p."""
    depths, beyond = np.clip(1 - 2 * p, 0, LAST_LEVEL), p < FLOOR
    if beyond.all():
        return np.full(p.shape, np.inf)
    if beyond.any():
        depths[beyond] = LAST_LEVEL + distance_transform_edt(beyond, sampling=size)[beyond] / radius
    return np.asarray(depths, np.float64)


def _radius(volume: float, axes: int) -> float:
    """Radius of the ball of this volume in so many axes; 1 if there is none."""
    unit = math.pi ** (axes / 2) / math.gamma(axes / 2 + 1)
    return (volume / unit) ** (1 / axes) or 1.0


def margin_scores(
    probability: npt.ArrayLike | Tensor,
    raters: npt.ArrayLike | Tensor,
    mask: npt.ArrayLike | Tensor | None = None,
    spacing: Sequence[float] | None = None,
) -> Values:
    """Score raters by the smallest depth whose band their map fits.

    Args:
        probability: "*space", the mean probability of a class.
        raters: "k *space" bool, where each rater marks the class.
        mask: "k *space" bool, False = void, which is not compared; None if nothing is void.
        spacing: size of a pixel along each axis.

    Returns:
        "k" float64. Infinite if a rater marks the class, and no pixel has a probability of at least 1%.

    >>> raters = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    >>> margin_scores([0.0, 0.2, 0.6, 0.9], raters).round(2).tolist()
    [0.0, 0.6, 0.8]
    """
    maps = np.asarray(raters, bool)
    known = np.ones_like(maps) if mask is None else np.asarray(mask, bool)
    outer, inner = margin_depths(probability, spacing)
    if maps.shape[1:] != outer.shape or known.shape != maps.shape:
        raise UserError(
            f'margin_scores: expected raters "k *space" of a map of shape {outer.shape}, got {maps.shape} and a mask '
            f"of shape {known.shape}"
        )
    depths = np.where(maps, outer, inner)
    scores: Values = np.where(known, depths, 0.0).reshape(len(maps), -1).max(1)
    return scores


def margin_map(
    probability: npt.ArrayLike | Tensor, offset: float | None, spacing: Sequence[float] | None = None
) -> npt.NDArray[np.uint8]:
    """Draw the band of a depth.

    Args:
        probability: "*space", the mean probability of a class.
        offset: the depth, of `conformal_offset` of `margin_scores`; None or infinity: everything is in the band.
        spacing: size of a pixel along each axis.

    Returns:
        "*space" uint8: 0 outside the outer region, 1 in the band, 2 in the inner region.

    >>> margin_map([0.0, 0.2, 0.6, 0.9], 0.6).tolist()
    [0, 1, 1, 2]
    """
    outer, inner = margin_depths(probability, spacing)
    depth = math.inf if offset is None else offset
    found = np.full(outer.shape, OUTSIDE, np.uint8)
    found[outer <= depth] = BAND
    found[(inner > depth) & ~np.isinf(depth)] = INSIDE
    return found
