"""Margins: a map fits the band of its score and of no smaller depth; bands are nested; coverage in simulations."""

import itertools

import numpy as np
import pytest

from stochseg.analysis import conformal_offset, margin_depths, margin_map, margin_scores
from stochseg.analysis.margins import BAND, FLOOR, INSIDE, LAST_LEVEL, OUTSIDE
from stochseg.errors import UserError


def fits(band, region):
    """The map contains the inner region and lies in the outer one."""
    return not (region & (band == OUTSIDE)).any() and not (~region & (band == INSIDE)).any()


def blob(random, size=24):
    """A probability map with levels 0 and 1, and raters that cross all of them."""
    y, x = np.mgrid[:size, :size]
    distance = np.hypot(y - random.uniform(8, 16), x - random.uniform(8, 16))
    p = np.clip(0.5 + (random.uniform(3, 6) - distance) / random.uniform(2, 8), 0, 1)
    raters = np.stack([distance < radius for radius in (0, 2, 4, 6, 9, 12, 40)])
    return p, raters


@pytest.mark.parametrize("seed", range(4))
def test_a_map_fits_the_band_of_its_score_and_no_narrower_one(seed):
    p, raters = blob(np.random.default_rng(seed))
    for region, score in zip(raters, margin_scores(p, raters), strict=True):
        assert fits(margin_map(p, score), region)
        assert score == 0 or not fits(margin_map(p, np.nextafter(score, 0)), region)


def test_bands_are_nested_and_go_beyond_the_last_level():
    p, _ = blob(np.random.default_rng(0))
    bands = [margin_map(p, depth) for depth in (0, 0.3, 0.9, LAST_LEVEL, 1.5, 3, 100)]
    for narrow, wide in itertools.pairwise(bands):
        assert (narrow[wide == OUTSIDE] == OUTSIDE).all()
        assert (narrow[wide == INSIDE] == INSIDE).all()
    assert np.array_equal(bands[3] != OUTSIDE, p >= FLOOR)
    assert (bands[-1] == BAND).all()
    assert (margin_map(p, None) == BAND).all()


def test_distances_are_in_units_of_the_object_and_follow_the_spacing():
    p = np.zeros((40, 40))
    p[18:22, 18:22] = 1
    outer, inner = margin_depths(p)
    assert outer[20, 25] == pytest.approx(LAST_LEVEL + 4 / np.sqrt(16 / np.pi))
    assert inner[20, 20] == pytest.approx(LAST_LEVEL + 2 / np.sqrt(16 / np.pi))
    for scaled in ((0.7, 0.7), (3.0, 3.0)):
        np.testing.assert_allclose(margin_depths(p, scaled)[0], outer)
    stretched, _ = margin_depths(p, (1.0, 2.0))
    assert stretched[20, 25] > stretched[25, 20]


def test_empty_maps_are_scored_by_the_peak_and_unpredicted_ones_have_no_finite_band():
    p = np.array([[0.0, 0.2, 0.7]])
    raters = np.array([[[0, 0, 0]], [[0, 0, 1]]], bool)
    np.testing.assert_allclose(margin_scores(p, raters), [0.4, 0.0])
    assert margin_scores(np.zeros((1, 3)), raters).tolist() == [0.0, np.inf]
    assert margin_scores(np.ones((1, 3)), np.ones((1, 1, 3), bool)).tolist() == [0.0]
    assert margin_scores(np.ones((1, 3)), raters).tolist() == [np.inf, np.inf]


def test_void_pixels_are_not_compared():
    p, raters = np.array([0.0, 0.2, 0.7]), np.array([[1, 0, 1]], bool)
    assert margin_scores(p, raters)[0] > LAST_LEVEL
    assert margin_scores(p, raters, np.array([[0, 1, 1]], bool)).tolist() == [0.0]
    with pytest.raises(UserError, match="shape"):
        margin_scores(p, raters[:, :2])


def test_bands_contain_the_outlines_of_raters_of_new_patients():
    """Patients share an error of the model; the band must hold for a random rater of a random image."""
    random = np.random.default_rng(3)
    y, x = np.mgrid[:16, :16]
    distance = np.hypot(y - 8, x - 8)

    def patient():
        shift, images = random.normal(0, 1), []
        for _ in range(random.integers(1, 4)):
            radius = random.uniform(2, 5)
            p = np.clip(0.5 + (radius - distance) / 2, 0, 1)
            own = [distance < max(0.0, radius + shift + random.normal(0, 0.6)) for _ in range(3)]
            images.append(margin_scores(p, np.stack(own)))
        return images

    covered = []
    for _ in range(25):
        offset = conformal_offset([patient() for _ in range(20)], 0.8)
        covered += [np.mean([(scores <= offset).mean() for scores in patient()]) for _ in range(10)]
    assert 0.74 < np.mean(covered) < 0.92
