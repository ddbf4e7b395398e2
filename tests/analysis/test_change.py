"""Growth between two scans against brute force over all pairs of samples."""

import math

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis import Measurement, growth, measure
from stochseg.errors import UserError
from stochseg.types import DatasetInfo
from tests.support.samples import as_samples
from tests.support.volumes import ball_samples

BEFORE, AFTER = (2.5, 1.0, 1.0), (1.25, 0.8, 0.8)


@pytest.fixture(scope="module")
def scans():
    before = ball_samples([0, 5, 6, 6.5], BEFORE, weights=[0.1, 0.4, 0.3, 0.2])
    after = ball_samples([0, 5, 7, 9, 6], AFTER, (16, 30, 30), weights=[0.2, 0.2, 0.3, 0.2, 0.1])
    return before, after


def pairs(before, after):
    """(before, after, weight) of all pairs of samples."""
    volumes = []
    for out, spacing in ((before, BEFORE), (after, AFTER)):
        counts = [int((labels > 0).sum()) * math.prod(spacing) for labels in out.labels[0]]
        volumes.append(list(zip(counts, out.weights[0].double().tolist(), strict=True)))
    return [(a, b, v * w) for a, v in volumes[0] for b, w in volumes[1]]


def test_distribution_over_all_pairs(scans):
    found = growth(*scans, spacing_before=BEFORE, spacing_after=AFTER, threshold=0.3, days=100)
    every = pairs(*scans)
    total = sum(w for *_, w in every)

    def probability(condition):
        return sum(w for a, b, w in every if condition(a, b)) / total

    assert found.grows.probability == pytest.approx(probability(lambda a, b: b > 1.3 * a))
    assert found.shrinks.probability == pytest.approx(probability(lambda a, b: b < a))
    assert found.is_new.probability == pytest.approx(probability(lambda a, b: a == 0 < b))
    assert found.is_gone.probability == pytest.approx(probability(lambda a, b: b == 0 < a))
    assert found.absolute.mean == pytest.approx(sum(w * (b - a) for a, b, w in every) / total)
    assert found.absolute.unit == "mm³"
    doubled = probability(lambda a, b: b > a and (a == 0 or 100 * math.log(2) / math.log(b / a) < 80))
    assert found.doubling_time.probability("<", 80) == pytest.approx(doubled)
    below = {value: sum(w for a, b, w in every if b - a <= value) / total for value in {b - a for a, b, _ in every}}
    median = min(value for value, weight in below.items() if weight >= 0.5 - 1e-9)
    assert found.absolute.quantile(0.5) == pytest.approx(median)
    assert "P(new) = 8%" in str(found)
    assert "volume doubling time" in str(found)


def test_doubling_time_of_known_volumes():
    before, after = (Measurement("volume of nodule", np.array([v]), np.ones(1), "mm³") for v in (100.0, 400.0))
    assert growth(before, after, days=90).doubling_time.values == pytest.approx([45])
    assert growth(after, before, days=90).doubling_time.values.tolist() == [math.inf]
    assert growth(before, before, days=90).relative.values.tolist() == [0]
    assert growth(before, after).doubling_time is None
    assert (growth(before, after).grows.probability, growth(after, before).shrinks.probability) == (1, 1)


def test_interval_of_the_probability_covers_it():
    """For two normal distributions of volumes, in at least about 95% of repeated draws of few samples."""
    rng, hits = np.random.default_rng(0), 0
    # b − 1.25 a is normal with mean 0.05 and variance 0.15² (1 + 1.25²).
    true = 0.5 * math.erfc(-0.05 / (0.15 * math.sqrt(2 * (1 + 1.25**2))))
    for _ in range(300):
        a, b = rng.normal(1, 0.15, 16), rng.normal(1.3, 0.15, 16)
        low, high = growth(*(Measurement("v", x, np.full(16, 1 / 16), "mm³") for x in (a, b))).grows.interval
        hits += low <= true <= high
    assert hits >= 0.93 * 300


def test_images_have_areas_and_classes_have_growth_of_their_own():
    maps = torch.zeros(2, 3, 6, 6, dtype=torch.long)
    maps[:, :, 1:3, 1:3] = 1
    maps[1, :, 1:3, 3:5] = 2
    before, after = (as_samples(each[None], 3) for each in maps)
    assert growth(before, after).absolute.values.tolist() == [4] * 9
    assert growth(before, after, label=1).relative.values.tolist() == [0] * 9
    assert growth(before, after, label=2).is_new.probability == pytest.approx(1)
    with pytest.raises(UserError, match="doubling time is that of a volume"):
        growth(before, after, days=30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spacing_before": BEFORE}, "got one of them"),
        ({"spacing_before": (1, 1), "spacing_after": AFTER}, "3 positive numbers"),
        ({"threshold": -0.1}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
        ({"days": 0}, "days"),
        ({"label": 2}, "class from 0 to 1"),
    ],
)
def test_impossible_options_are_refused(scans, options, message):
    with pytest.raises(UserError, match=message):
        growth(*scans, **options)


def test_scans_that_cannot_be_compared_are_refused(scans):
    empty = ball_samples([0, 0])
    with pytest.raises(UserError, match="is 0 in every sample of both"):
        growth(empty, empty)
    with pytest.raises(UserError, match="two volumes or two images"):
        growth(scans[0], as_samples(torch.ones(2, 4, 4, dtype=torch.long)))
    named = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3, class_names=("background", "nodule"))
    other = named.model_copy(update={"class_names": ("background", "cyst")})
    maps = [
        stochseg.Samples(s.labels, s.mean, s.weights, 0, info=i) for s, i in zip(scans, (named, other), strict=True)
    ]
    with pytest.raises(UserError, match="background, nodule and background, cyst"):
        growth(*maps)
    volume, diameter = (measure(scans[0], what, spacing=BEFORE) for what in ("volume", "longest diameter"))
    with pytest.raises(UserError, match="the same class in the same unit"):
        growth(volume, diameter)
    with pytest.raises(UserError, match="got one of each"):
        growth(volume, scans[1])


def test_is_public():
    assert stochseg.growth is growth
