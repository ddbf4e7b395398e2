"""Group samples by their distances: average linkage, cut by the silhouette, refined group by group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

Matrix = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]


def group(distance: Matrix, weights: Matrix, max_groups: int, min_separation: float) -> Groups:
    """Number of the group of each of n samples, from 0.

    distance: "n n", symmetric, 0 on the diagonal; weights: "n", positive; min_separation: silhouette above which
    samples are split.
    """
    groups = _best_cut(distance, weights, max_groups, min_separation, 0.0)
    while True:
        # A single cut prefers the coarse view, which merges close readings: cut each group again. Parts of a group are
        # considered no tighter than the tightest group: among few samples some are close by chance, and a single
        # sample away from the others of its group is not yet a reading.
        floor = _tightest(distance, weights, groups)
        finer = np.zeros_like(groups)
        count = 0
        for g in range(groups.max() + 1):
            members = np.flatnonzero(groups == g)
            inner = distance[np.ix_(members, members)]
            parts = _best_cut(inner, weights[members], max_groups, min_separation, floor, min_size=2)
            finer[members] = parts + count
            count += parts.max() + 1
        if count == groups.max() + 1 or count > max_groups:
            return groups
        groups = finer


def _best_cut(
    distance: Matrix, weights: Matrix, max_groups: int, min_separation: float, floor: float, min_size: int = 1
) -> Groups:
    """Cut of the tree with the largest silhouette above `min_separation`, or one group."""
    n = len(distance)
    best, score = np.zeros(n, dtype=np.int64), min_separation
    if n < 2 or distance.max() == 0:
        return best
    tree = linkage(squareform(distance, checks=False), "average")
    for count in range(2, min(max_groups, n) + 1):
        groups = fcluster(tree, count, "maxclust").astype(np.int64) - 1
        # The tree has no such cut if several of its merges are at the same height.
        if groups.max() + 1 < count or np.bincount(groups).min() < min_size:
            continue
        value = silhouette(distance, weights, groups, floor)
        if value > score + 1e-9:
            best, score = groups, value
    return best


def silhouette(distance: Matrix, weights: Matrix, groups: Groups, floor: float) -> float:
    """Weighted mean silhouette (b - a) / max(a, b) of the samples, with a at least `floor`.

    a, the mean distance to the other samples of the own group, is undefined for a sample alone in its group. It is then
    the largest distance within any group: a rare reading drawn once stands out only if it is farther away than that.
    The silhouette is 0 if every sample is alone.
    """
    together = (groups[:, None] == groups[None]) & ~np.eye(len(groups), dtype=bool)
    if not together.any():
        return 0.0
    alone = ~together.any(1)
    a = (together * distance) @ weights / np.where(alone, 1, together @ weights)
    a = np.maximum(np.where(alone, distance[together].max(), a), floor)
    member = np.eye(groups.max() + 1)[groups]
    others = distance @ (weights[:, None] * member) / (weights @ member)
    others[member > 0] = np.inf
    b = others.min(1)
    larger = np.maximum(a, b)
    scores = np.divide(b - a, larger, out=np.zeros_like(a), where=larger > 0)
    return float(weights @ scores / weights.sum())


def _tightest(distance: Matrix, weights: Matrix, groups: Groups) -> float:
    """Smallest weighted mean distance between two samples of a group; 0 if every sample is alone."""
    pairs = np.outer(weights, weights)
    np.fill_diagonal(pairs, 0)
    member = np.eye(groups.max() + 1)[groups]
    total, count = (np.einsum("ng,nm,mg->g", member, values, member) for values in (pairs * distance, pairs))
    return float((total[count > 0] / count[count > 0]).min()) if (count > 0).any() else 0.0
