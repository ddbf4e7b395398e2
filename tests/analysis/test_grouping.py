"""Grouping of samples by their distances."""

import numpy as np
import pytest

from stochseg.analysis.grouping import group, silhouette


def test_silhouette_of_equal_weights_matches_the_definition():
    points = np.random.default_rng(0).random((12, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    groups = np.repeat([0, 1, 2], 4)
    scores = []
    for i in range(12):
        to = [np.mean([distance[i, j] for j in range(12) if groups[j] == g and j != i]) for g in range(3)]
        a, b = to[groups[i]], min(to[g] for g in range(3) if g != groups[i])
        scores.append((b - a) / max(a, b))
    assert silhouette(distance, np.full(12, 1 / 12), groups, 0.0) == pytest.approx(np.mean(scores))


def test_max_groups_is_an_upper_bound():
    points = np.arange(12.0).repeat(3)
    distance = np.abs(points[:, None] - points[None]) / 12
    for bound in (1, 2, 5):
        assert group(distance, np.full(36, 1 / 36), max_groups=bound, min_separation=0.4).max() < bound


def test_loose_group_is_not_split_into_single_samples():
    """Among few samples some are close by chance; the remaining ones are not readings of their own."""
    distance = np.full((26, 26), 0.6)
    distance[:20, :20] = np.random.default_rng(0).uniform(0.04, 0.07, (20, 20))
    distance[20:, 20:] = np.random.default_rng(0).uniform(0.1, 0.3, (6, 6))
    distance[20, 21] = 0.05
    distance = np.minimum(distance, distance.T)
    np.fill_diagonal(distance, 0)
    groups = group(distance, np.full(26, 1 / 26), 8, 0.4)
    assert len(set(groups)) == 2
    assert len(set(groups[20:])) == 1
