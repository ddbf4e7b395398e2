"""Agreement of raters, compared with definitions written as loops."""

import numpy as np
import pytest

from stochseg.errors import UserError
from stochseg.metrics.agreement import count_votes, surface_distance


def brute_force_distance(a, b, spacing):
    def surface(mask):
        padded = np.pad(mask, 1)
        points = []
        for place in np.argwhere(mask):
            steps = np.eye(mask.ndim, dtype=int)
            neighbors = [place + 1 + step for step in (*steps, *-steps)]
            if not all(padded[tuple(n)] for n in neighbors):
                points.append(place * spacing)
        return np.array(points)

    one, two = surface(a), surface(b)
    far = np.linalg.norm(one[:, None] - two[None], axis=-1)
    return np.concatenate([far.min(1), far.min(0)]).mean()


@pytest.mark.parametrize("shape", [(9, 11), (5, 6, 7)])
def test_surface_distance_is_the_definition(shape):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, *shape)) < 0.3
    spacing = np.array([2.0, 0.5, 0.7][: len(shape)])
    assert surface_distance(a, b, spacing) == pytest.approx(brute_force_distance(a, b, spacing))
    assert np.isnan(surface_distance(a, np.zeros(shape, bool)))
    with pytest.raises(UserError, match="one shape"):
        surface_distance(a, b[:-1])


def fleiss(counts):
    """The formula of Fleiss 1971, for pixels "N l" of equally many votes."""
    n = counts.sum(1)[0]
    p = counts.sum(0) / counts.sum()
    agreement = ((counts**2).sum(1) - n) / (n * (n - 1))
    return (agreement.mean() - (p**2).sum()) / (1 - (p**2).sum())


def test_kappa_is_that_of_fleiss():
    maps = np.random.default_rng(0).integers(0, 3, (5, 40)) * np.random.default_rng(1).integers(0, 2, 40)
    counts = np.stack([(maps == label).sum(0) for label in range(3)], 1)
    votes = count_votes(maps, 3)
    assert votes.kappa == pytest.approx(fleiss(counts))
    for label in range(3):
        binary = np.stack([counts[:, label], 5 - counts[:, label]], 1)
        assert votes.kappa_per_class[label] == pytest.approx(fleiss(binary))


def test_votes_of_images_add_up_and_void_is_no_vote():
    maps = np.random.default_rng(0).integers(0, 2, (3, 30))
    parts = count_votes(maps[:, :10], 2) + count_votes(maps[:, 10:], 2)
    assert parts.kappa == pytest.approx(count_votes(maps, 2).kappa)
    with_void = np.concatenate([maps, np.full((3, 5), 255)], 1)
    assert count_votes(with_void, 2, ignore=255).kappa == pytest.approx(count_votes(maps, 2).kappa)
    assert np.isnan(count_votes(np.zeros((3, 5), int), 2).kappa)


def test_pixels_count_by_their_votes():
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, 3, (k, 25)) for k in (2, 3, 5)]
    counts = np.concatenate([np.stack([(maps == label).sum(0) for label in range(3)], 1) for maps in parts])
    n = counts.sum(1)
    p = counts.sum(0) / counts.sum()
    agreement = np.average((counts * (counts - 1)).sum(1) / (n * (n - 1)), weights=n)
    expected = (agreement - (p**2).sum()) / (1 - (p**2).sum())
    total = count_votes(parts[0], 3) + count_votes(parts[1], 3) + count_votes(parts[2], 3)
    assert total.kappa == pytest.approx(expected)
