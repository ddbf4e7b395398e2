"""Conformal intervals: scores and intervals agree, quantiles by brute force, coverage in simulations."""

import math
from dataclasses import replace

import numpy as np
import pytest

from stochseg.analysis.conformal import calibrated_interval, conformal_interval, conformal_offset, conformity
from stochseg.analysis.measurement import Measurement
from stochseg.errors import UserError


def measured(values):
    return Measurement("area", np.asarray(values, float), np.full(len(values), 1 / len(values)))


@pytest.mark.parametrize("minimum", [0.0, None])
@pytest.mark.parametrize("offset", [-0.3, -0.1, 0.0, 0.5])
def test_values_are_inside_if_their_score_is_at_most_the_offset(offset, minimum):
    random = np.random.default_rng(0)
    for samples in (random.gamma(2, 10, 16), np.r_[0, 0, random.gamma(2, 10, 14)], np.full(16, 7.0), np.zeros(16)):
        values = np.r_[random.gamma(2, 10, 50), 0.0]
        low, high = conformal_interval(measured(samples), offset, minimum=minimum)
        inside = (values >= low - 1e-9) & (values <= high + 1e-9)
        below = conformity(measured(samples), values, minimum=minimum) <= offset
        assert not (below & ~inside).any()
        assert low == high or np.array_equal(below, inside)


def test_offset_is_the_smallest_with_enough_weight():
    random = np.random.default_rng(1)
    scores = [[random.normal(size=random.integers(1, 5)) for _ in range(random.integers(1, 6))] for _ in range(30)]

    def weight(offset):
        return sum(np.mean([np.mean(image <= offset) for image in images]) for images in scores) / 31

    every = np.sort(np.concatenate([image for images in scores for image in images]))
    expected = next(value for value in every if weight(value) >= 0.8 - 1e-9)
    assert conformal_offset(scores, 0.8) == expected


def test_patients_of_many_images_do_not_outvote_the_others():
    scores = [[[5.0]] * 1000, *([[[float(i)]] for i in range(19)])]
    assert conformal_offset(scores, 0.5) == 9.0


def test_too_few_patients_have_no_finite_offset():
    assert conformal_offset([[[0.0]]] * 9, 0.9) == 0.0
    assert math.isinf(conformal_offset([[[0.0]] * 100] * 8, 0.9))
    with pytest.raises(UserError, match="one rater per image"):
        conformal_offset([[[]]])


def test_coverage_of_new_patients_with_dependent_images_and_raters():
    """Patients share an error of the model over their images, and images of it over raters; samples are too narrow."""
    random = np.random.default_rng(2)

    def patient():
        shift, images = random.normal(0, 3), []
        for _ in range(random.integers(1, 8)):
            truth = random.uniform(20, 60)
            raters = truth + shift + random.normal(0, 2) + random.normal(0, 1, random.integers(1, 5))
            images.append((measured(truth + random.normal(0, 1, 16)), raters))
        return images

    before, after = [], []
    for _ in range(60):
        scores = [[conformity(samples, raters) for samples, raters in patient()] for _ in range(24)]
        offset = conformal_offset(scores)
        for _ in range(8):
            new = [conformity(samples, raters) for samples, raters in patient()]
            before.append(np.mean([np.mean(each <= 0) for each in new]))
            after.append(np.mean([np.mean(each <= offset) for each in new]))
    assert np.mean(before) < 0.5
    assert 0.88 < np.mean(after) < 0.95


def test_samples_without_a_value_have_no_interval():
    nothing = measured([math.nan] * 4)
    assert conformity(nothing, np.array([0.5, 0.0])).tolist() == [math.inf, math.inf]
    assert calibrated_interval(replace(nothing, offsets={0.9: 0.1})) is None
