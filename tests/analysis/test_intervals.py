"""Intervals: of probabilities against the binomial distribution, of samples against fresh raters."""

import numpy as np
import pytest
import torch
from scipy import stats

from stochseg.analysis import Measurement, coverage, measure
from stochseg.analysis.intervals import jeffreys_interval
from stochseg.data import Phantoms
from stochseg.errors import UserError


def test_jeffreys_interval_covers_the_true_probability():
    n = 30
    for p in (0.1, 0.3, 0.7):
        counts = np.arange(n + 1)
        chance = stats.binom.pmf(counts, n, p)
        covered = [low <= p <= high for low, high in (jeffreys_interval(c / n, n, 0.95) for c in counts)]
        assert 0.92 < chance @ covered < 0.98
    assert jeffreys_interval(0.0, n)[0] == 0
    assert jeffreys_interval(1.0, n)[1] == 1


@pytest.mark.parametrize("variant", ["binary", "multiclass"])
def test_perfect_samples_cover_fresh_raters(variant):
    data = Phantoms("val", size=16, variant=variant, count=300)
    ours = [measure(data.draw(i, 40, seed=1), "area", label=1) for i in range(300)]
    fresh = [measure(data.draw(i, 8, seed=2), "area", label=1) for i in range(300)]
    for confidence in (0.5, 0.9):
        got = coverage(ours, fresh, confidence)
        assert got.randomized == pytest.approx(confidence, abs=0.05)
        assert got.closed >= got.randomized
    assert 0.85 <= got.randomized <= 0.95
    assert got.count == 2400


def test_overconfident_samples_cover_too_little():
    data = Phantoms("val", size=16, count=100)
    sure = [measure(data.draw(i, 1, seed=1).repeat(40, 1, 1), "area") for i in range(100)]
    assert coverage(sure, [measure(data[i].raters, "area") for i in range(100)]).randomized < 0.7


@pytest.mark.parametrize("n", [3, 10, 37])
def test_coverage_is_exact_at_every_n(n):
    """Each of n + 1 exchangeable values is the rater's once: the mean is the confidence, with and without ties."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n + 1), rng.integers(0, 3, n + 1).astype(float), np.zeros(n + 1)):
        ours = [Measurement("x", np.delete(values, i), np.full(n, 1 / n)) for i in range(n + 1)]
        theirs = [Measurement("x", values[i : i + 1], np.ones(1)) for i in range(n + 1)]
        assert coverage(ours, theirs, 0.9).randomized == pytest.approx(0.9)


def test_coverage_needs_one_unit_and_pairs():
    maps = torch.ones(2, 3, 3, dtype=torch.long)
    plain, metric = measure(maps), measure(maps, spacing=(1, 1))
    with pytest.raises(UserError, match="one unit"):
        coverage([plain], [metric])
    with pytest.raises(UserError, match="got 0 and 1"):
        coverage([plain], [])
