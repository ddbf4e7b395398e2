"""Intervals: of a probability estimated from samples, and how well intervals of samples cover raters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from stochseg.analysis.measurement import Measurement, Values, check_confidence
from stochseg.errors import UserError


def jeffreys_interval(probability: float, count: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Jeffreys interval of a probability estimated from `count` independent samples.

    It is the central interval of the posterior Beta(½ + successes, ½ + failures), with ends 0 and 1 where no sample
    or every sample is a success. For weighted samples, `count` is 1 / Σ w².
    """
    successes, failures = probability * count, (1 - probability) * count
    tail = (1 - confidence) / 2
    low, high = beta.ppf([tail, 1 - tail], 0.5 + successes, 0.5 + failures)
    return (0.0 if successes < 1e-9 else float(low)), (1.0 if failures < 1e-9 else float(high))


@dataclass(frozen=True)
class Coverage:
    """Fraction of the raters' values inside the intervals of the samples; `randomized` should equal `confidence`.

    randomized: with ties at the ends of the interval broken at random, see `coverage`; closed: inside
    `Measurement.interval`, ends included, which exceeds `confidence` if values repeat; count: number of values.
    """

    confidence: float
    randomized: float
    closed: float
    count: int

    def __str__(self) -> str:
        contained = f"{self.randomized:.1%} of {self.count} rater values ({self.closed:.1%} if ties at the ends count)"
        return f"{self.confidence:.0%} intervals contain {contained}"


def coverage(samples: Sequence[Measurement], raters: Sequence[Measurement], confidence: float = 0.9) -> Coverage:
    """Compute how often the central intervals of the samples contain the values of the raters.

    A measurement of label maps has few distinct values, and an interval that ends on one of them contains all its
    ties, so that perfect samples would seem too cautious. Therefore a rater's value is ranked among the n samples with
    ties in random order, and is covered if its rank is in the middle `confidence` of the n + 1 ranks. The result is the
    expectation over that order, nothing is drawn. If rater and samples follow one distribution, it equals `confidence`
    at every n, also for discrete distributions. Weighted samples count as 1 / Σ w².

    Args:
        samples: one measurement of the samples per image.
        raters: one measurement of the raters per image, in the same order and unit.
        confidence: of the intervals.

    Returns:
        The fraction of the raters' values inside the intervals.

    Raises:
        UserError: for different numbers of images, different units, or a confidence outside 0 to 1.

    >>> samples = Measurement("area", np.arange(100.0), np.full(100, 0.01))
    >>> raters = Measurement("area", np.array([40.0, 50.0, 200.0]), np.full(3, 1 / 3))
    >>> print(coverage([samples], [raters]))
    90% intervals contain 66.7% of 3 rater values (66.7% if ties at the ends count)
    """
    check_confidence(confidence)
    if len(samples) != len(raters) or not samples:
        raise UserError(
            f"coverage: expected one measurement of the raters for each of the samples, got {len(raters)} and "
            f"{len(samples)}"
        )
    randomized: list[float] = []
    closed: list[bool] = []
    for ours, theirs in zip(samples, raters, strict=True):
        if ours.unit != theirs.unit:
            raise UserError(f"coverage: expected one unit, got {ours.unit!r}, {theirs.unit!r}; pass spacing for both")
        low, high = ours.interval(confidence)
        randomized.extend(_covered(ours, theirs.values, confidence))
        closed.extend((theirs.values >= low) & (theirs.values <= high))
    return Coverage(confidence, float(np.mean(randomized)), float(np.mean(closed)), len(closed))


def _covered(samples: Measurement, values: Values, confidence: float) -> Values:
    """Probability that the rank of each value, ties in random order, is in the middle `confidence` of all ranks."""
    count = samples.effective_count
    below, tied = (np.array([samples.probability(sign, v) for v in values]) * count for sign in ("<", "=="))
    low, high = below / (count + 1), (below + tied + 1) / (count + 1)
    overlap = np.minimum(high, (1 + confidence) / 2) - np.maximum(low, (1 - confidence) / 2)
    return np.asarray(np.clip(overlap, 0, None) / (high - low))
