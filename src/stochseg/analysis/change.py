"""Change between two scans: the distribution over all pairs of samples, and what follow-up guidelines ask about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, class_names, select_image
from stochseg.analysis.intervals import jeffreys_interval
from stochseg.analysis.measurement import COMPARISONS, Measurement, Values
from stochseg.analysis.measures import measure
from stochseg.analysis.questions import Answer
from stochseg.errors import UserError, is_number
from stochseg.types import Samples


@dataclass(frozen=True, eq=False)
class Growth:
    """Change of a measurement from one scan to the next, over all pairs of a sample of each.

    Attributes:
        before: the measurement of the first scan.
        after: the measurement of the second scan.
        threshold: relative change that counts as growth; 0.25 is 25%.
        absolute: after − before, one value per pair.
        relative: (after − before) / before, one value per pair: 0.25 is growth by 25%; inf if there was nothing before,
            0 if there is nothing in either.
        doubling_time: days in which the volume doubles at this rate, one value per pair: inf if it does not grow, 0 if
            there was nothing before; None without the days between the scans.
    """

    before: Measurement
    after: Measurement
    threshold: float
    absolute: Measurement
    relative: Measurement
    doubling_time: Measurement | None = None

    @property
    def grows(self) -> Answer:
        """P(relative change > threshold), with its 95% interval for this number of samples."""
        return self._answer(">", self.threshold)

    @property
    def shrinks(self) -> Answer:
        """P(relative change < 0), with its 95% interval for this number of samples."""
        return self._answer("<", 0.0)

    @property
    def is_new(self) -> Answer:
        """P(nothing before, something after), with its 95% interval for this number of samples."""
        return self._answer("==", math.inf)

    @property
    def is_gone(self) -> Answer:
        """P(something before, nothing after), with its 95% interval for this number of samples."""
        return self._answer("==", -1.0)

    def _answer(self, comparison: str, change: float) -> Answer:
        probability = float(self.relative.weights[COMPARISONS[comparison](self.relative.values, change)].sum())
        # The variance of a mean over all pairs of n and m draws is at most p (1 - p) / min(n, m).
        count = min(self.before.effective_count, self.after.effective_count)
        return Answer(min(1.0, probability), jeffreys_interval(min(1.0, probability), count))

    def __str__(self) -> str:
        lines = [
            f"{self.before.name}: {_median(self.before)} before, {_median(self.after)} after",
            f"change: {_median(self.absolute)}; relative {_percent(self.relative)}; median (90% of pairs of samples)",
            f"P(growth > {100 * self.threshold:g}%) = {self.grows}; P(shrinks) = {self.shrinks}",
        ]
        if self.is_new.probability or self.is_gone.probability:
            lines.append(f"P(new) = {self.is_new}; P(gone) = {self.is_gone}")
        if self.doubling_time is not None:
            lines.append(f"volume doubling time: {_median(self.doubling_time)}")
        return "\n".join(lines)

    __repr__ = __str__


def growth(
    before: Samples | Tensor | ImageSamples | Measurement,
    after: Samples | Tensor | ImageSamples | Measurement,
    *,
    label: int | str | None = None,
    spacing_before: Sequence[float] | None = None,
    spacing_after: Sequence[float] | None = None,
    threshold: float = 0.25,
    days: float | None = None,
) -> Growth:
    """Compute the distribution of the change of a volume between two scans, and P(growth > 25%).

    Every sample of one scan is compared with every sample of the other, weighted by the product of their weights: the
    samples of two scans are independent. An error that a model makes in both scans would cancel in truth and does not
    here, so the interval is rather too wide than too narrow, provided that each scan's own interval is right.

    Args:
        before: samples of the first scan, of one volume (or one image, for its area), or any measurement of them.
        after: samples of the second scan, or the same measurement of them.
        label: the class, by number or by name; None takes all foreground.
        spacing_before: millimeters per voxel of the first scan (slice, row, column).
        spacing_after: millimeters per voxel of the second scan. Without both, voxels are taken to be of one size.
        threshold: relative change that counts as growth; 0.25 is 25%.
        days: between the scans, for the doubling time of a volume.

    Returns:
        The distributions of the absolute and the relative change, with the probabilities of growth and shrinkage.

    Raises:
        UserError: for scans of different classes or units, or if no sample of either scan marks anything.

    >>> import stochseg, torch
    >>> before, after = torch.zeros(2, 4, 4, 8, 8, dtype=torch.long)
    >>> before[:, 1, 2:4, 2:4] = 1
    >>> after[:, 1, 2:4, 2:4] = 1
    >>> after[2:, 2, 2:4, 2:4] = 1  # two of four samples show twice the volume
    >>> change = stochseg.growth(before, after, spacing_before=(2, 1, 1), spacing_after=(2, 1, 1), days=90)
    >>> change
    volume of foreground: 8 (8 – 8) mm³ before, 8 (8 – 16) mm³ after
    change: 0 (0 – 8) mm³; relative +0% (+0% – +100%); median (90% of pairs of samples)
    P(growth > 25%) = 50% (12% – 88%); P(shrinks) = 0% (0% – 44%)
    volume doubling time: 90 (90 – inf) days
    >>> change.doubling_time.probability("<", 400)
    0.5
    """
    _check_numbers(threshold, days)
    if isinstance(before, Measurement) or isinstance(after, Measurement):
        if not (isinstance(before, Measurement) and isinstance(after, Measurement)):
            raise UserError("growth: expected samples of both scans or measurements of both, got one of each")
        if label is not None or spacing_before is not None or spacing_after is not None:
            raise UserError("growth: label and spacing apply to samples; use them in `measure`")
    else:
        first, second = select_image(before), select_image(after)
        _check_scans(first, second, (spacing_before, spacing_after))
        before = measure(first, label=label, spacing=spacing_before)
        after = measure(second, label=label, spacing=spacing_after)
    if (before.name, before.unit) != (after.name, after.unit):
        raise UserError(
            f"growth: expected one measurement of both scans, got {before.name} ({before.unit}) and {after.name} "
            f"({after.unit}); measure the same class in the same unit"
        )
    if not before.values.any() and not after.values.any():
        raise UserError(f"growth: {before.name} is 0 in every sample of both scans, so there is no change to compute")
    return _all_pairs(before, after, threshold, days)


def _check_numbers(threshold: float, days: float | None) -> None:
    if not is_number(threshold) or not 0 <= threshold < math.inf:
        raise UserError(f"threshold: expected a relative change of at least 0, such as 0.25 for 25%, got {threshold!r}")
    if days is not None and (not is_number(days) or not 0 < days < math.inf):
        raise UserError(f"days: expected a positive number of days between the scans, got {days!r}")


def _check_scans(before: ImageSamples, after: ImageSamples, spacing: tuple[object, object]) -> None:
    """Raise a UserError for scans that cannot be compared."""
    names = class_names(before.info), class_names(after.info)
    if names[0] != names[1]:
        raise UserError(
            f"growth: expected the same classes in both scans, got {', '.join(names[0])} and {', '.join(names[1])}; "
            "sample both with one model"
        )
    if before.axes != after.axes:
        raise UserError(f"growth: expected two volumes or two images, got {before.axes} and {after.axes} spatial axes")
    if (spacing[0] is None) != (spacing[1] is None):
        raise UserError("growth: expected spacing_before and spacing_after, or neither, got one of them")


def _all_pairs(before: Measurement, after: Measurement, threshold: float, days: float | None) -> Growth:
    first, second = np.broadcast_arrays(before.values[:, None], after.values[None])
    first, second = first.ravel(), second.ravel()
    weights = np.outer(before.weights, after.weights).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(first == second, 1.0, second / first)
    absolute = Measurement(f"change of {before.name}", second - first, weights, before.unit)
    relative = Measurement(f"relative change of {before.name}", ratio - 1, weights)
    doubling = None
    if days is not None:
        if not before.unit.endswith("³"):
            raise UserError(
                f"days: the doubling time is that of a volume, got {before.name} ({before.unit}); omit days"
            )
        doubling = Measurement("volume doubling time", _doubling_time(ratio, days), weights, "days")
    return Growth(before, after, float(threshold), absolute, relative, doubling)


def _doubling_time(ratio: Values, days: float) -> Values:
    """days · ln 2 / ln ratio; inf if the ratio is at most 1."""
    with np.errstate(divide="ignore"):
        return np.where(ratio > 1, days * math.log(2) / np.log(np.maximum(ratio, 1)), math.inf)


def _median(measured: Measurement) -> str:
    """Median with the 90% interval and the unit."""
    low, high = measured.interval(0.9)
    return f"{measured.quantile(0.5):.4g} ({low:.4g} – {high:.4g}) {measured.unit}".rstrip()


def _percent(relative: Measurement) -> str:
    low, high = relative.interval(0.9)
    return f"{relative.quantile(0.5):+.0%} ({low:+.0%} – {high:+.0%})"
