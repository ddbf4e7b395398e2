"""Conformal intervals of measurements: intervals of samples, widened until they hold the values of raters.

Patients (groups) are the exchangeable unit. The images of a patient and the raters of an image may depend on each
other in any way: within a patient every image counts the same, and within an image every rater.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stochseg.analysis.measurement import Measurement, Values, check_confidence
from stochseg.errors import UserError

RELATIVE = 0.1
"""Part of the mean in the scale of a score, so that samples that agree have a scale, too."""


def conformity(samples: Measurement, values: Values, confidence: float = 0.9, minimum: float | None = 0.0) -> Values:
    """Score how far values lie outside the interval of the samples: negative inside, 0 at its ends.

    The score is max(low - value, value - high) / scale with the scale high - low + 0.1 |mean|, as in conformalized
    quantile regression. It has no unit. A low end at the minimum cannot be missed, so only the high end counts.

    Args:
        samples: one measurement of the samples of an image.
        values: "k", such as those of the raters.
        confidence: of the interval of the samples.
        minimum: the smallest possible value; None if there is none.

    Returns:
        "k" float64; infinite if all samples are 0 and the value is not, or if no sample has a value.

    >>> samples = Measurement("area", np.arange(1.0, 101.0), np.full(100, 0.01))
    >>> conformity(samples, np.array([5.0, 50.0, 95.0 + 95.05])).round(2).tolist()
    [0.0, -0.47, 1.0]
    """
    low, high = samples.interval(confidence)
    if math.isnan(low):
        return np.full(np.shape(values), np.inf)
    distance = np.maximum(-np.inf if _at(low, minimum) else low - values, values - high)
    scale = _scale(samples, low, high)
    if scale > 0:
        return np.asarray(distance / scale, dtype=np.float64)
    return np.where(distance > 0, np.inf, 0.0)


def conformal_interval(
    samples: Measurement, offset: float, confidence: float = 0.9, minimum: float | None = 0.0
) -> tuple[float, float]:
    """Widen the interval of the samples by an offset, or narrow it by a negative one.

    Args:
        samples: one measurement of the samples of an image.
        offset: of `conformal_offset`, for the same confidence and minimum.
        confidence: of the interval of the samples.
        minimum: the smallest possible value; None if there is none.

    Returns:
        The ends of the interval. A value is inside if its `conformity` is at most the offset.

    >>> samples = Measurement("area", np.arange(1.0, 101.0), np.full(100, 0.01))
    >>> conformal_interval(samples, 0.02)
    (3.099, 96.901)
    """
    low, high = samples.interval(confidence)
    scale = _scale(samples, low, high)
    fixed = _at(low, minimum)
    lower, upper = low if fixed else low - offset * scale, high + offset * scale
    if lower > upper:  # a negative offset has closed it
        lower = upper = low if fixed else (low + high) / 2
    return (lower if minimum is None else max(lower, minimum)), upper


def calibrated_interval(measured: Measurement, confidence: float = 0.9) -> tuple[float, float] | None:
    """Return the calibrated interval of a measurement of the samples of a calibrated model.

    Args:
        measured: of `measure(samples, …, calibration=model.calibration)`.
        confidence: one that was calibrated.

    Returns:
        The ends of the interval; None without a finite offset for this measurement and confidence, and for samples
        without a value.

    >>> area = Measurement("area", np.arange(1.0, 101.0), np.full(100, 0.01), offsets={0.9: 0.02})
    >>> calibrated_interval(area)
    (3.099, 96.901)
    """
    check_confidence(confidence)
    offset = measured.offsets.get(confidence)
    if offset is None or math.isnan(measured.interval(confidence)[0]):
        return None
    return conformal_interval(measured, offset, confidence)


def conformal_offset(scores: Sequence[Sequence[npt.ArrayLike]], confidence: float = 0.9) -> float:
    """Compute the smallest offset whose intervals hold a rater of a new patient with at least this probability.

    With K patients, a score weighs 1 / (K + 1) / (images of the patient) / (raters of the image), and the missing
    1 / (K + 1) stands for the new patient, whose scores are taken as infinite. The offset is the quantile of these
    weighted scores. If patients are exchangeable, the interval of a random image of a new patient contains the value of
    a random rater with a probability of at least `confidence`, averaged over patients, for any number of patients.

    Args:
        scores: for every patient, for every image, the scores of its raters.
        confidence: of the intervals.

    Returns:
        The offset for `conformal_interval`. It is infinite if no finite one suffices, as for fewer than
        confidence / (1 - confidence) patients.

    Raises:
        UserError: without patients, or for a patient without images or an image without raters.

    >>> conformal_offset([[[float(i)]] for i in range(19)], 0.9)
    17.0
    >>> conformal_offset([[[0.0]]] * 8, 0.9)
    inf
    """
    check_confidence(confidence)
    if not scores or not all(images and all(np.size(each) for each in images) for images in scores):
        raise UserError("conformal_offset: expected at least one image per patient and one rater per image")
    values, weights = [], []
    for images in scores:
        for each in images:
            own = np.asarray(each, dtype=np.float64).ravel()
            values.append(own)
            weights.append(np.full(len(own), 1 / (len(scores) + 1) / len(images) / len(own)))
    ordered = np.concatenate(values)
    order = np.argsort(ordered, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    position = int(np.searchsorted(total, confidence - 1e-9))  # sums of weights have rounding errors
    return math.inf if position == len(order) else float(ordered[order[position]])


def _scale(samples: Measurement, low: float, high: float) -> float:
    return high - low + RELATIVE * abs(samples.mean)


def _at(low: float, minimum: float | None) -> bool:
    return minimum is not None and low <= minimum
