"""The result of measuring: one number per sample, with its statistics."""

from __future__ import annotations

import html
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stochseg.errors import UserError, is_number, unknown_name

Values = npt.NDArray[np.float64]

MM3_PER_ML = 1000.0
COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True, eq=False)
class Measurement:
    """One number per sample.

    values: "n" float64, NaN where a sample has no value; weights: "n" float64, sum 1; unit: "mm", "px²", ..., or "" for
    counts; offsets: of calibrated intervals, by their confidence (see `stochseg.analysis.calibrated_interval`). Mean,
    deviation and quantiles are those of the samples that have a value.

    >>> diameter = Measurement("diameter", np.array([0.0, 5.0, 7.0, 8.0]), np.full(4, 0.25), "mm")
    >>> diameter
    diameter: 5 mm, std 3.08, 90% 0 to 8 mm (4 samples)
    >>> diameter.probability(">", 6)
    0.5
    """

    name: str
    values: Values
    weights: Values
    unit: str = ""
    offsets: Mapping[float, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Weighted mean."""
        known = self.defined()
        return float(known.weights @ known.values) if len(known.values) else math.nan

    @property
    def std(self) -> float:
        """Weighted standard deviation, without a correction for n."""
        known = self.defined()
        return math.sqrt(float(known.weights @ (known.values - self.mean) ** 2)) if len(known.values) else math.nan

    @property
    def undefined(self) -> float:
        """Weight of the samples without a value."""
        return float(self.weights[np.isnan(self.values)].sum())

    def defined(self) -> Measurement:
        """The measurement of the samples that have a value, perhaps none."""
        known = ~np.isnan(self.values)
        if known.all():
            return self
        total = self.weights[known].sum()
        return replace(self, values=self.values[known], weights=self.weights[known] / (total if total > 0 else 1.0))

    @property
    def effective_count(self) -> float:
        """Number of equally weighted samples with the same variance of the mean, 1 / Σ w²."""
        return 1 / float((self.weights**2).sum())

    def quantile(self, q: float) -> float:
        """Return the smallest value v with P(value <= v) >= q: one of the values, or NaN if there are none."""
        if not is_number(q) or not 0 <= q <= 1:
            raise UserError(f"quantile: expected q from 0 to 1, got {q!r}")
        known = self.defined()
        order = np.argsort(known.values, kind="stable")
        order = order[known.weights[order] > 0]
        if not len(order):
            return math.nan
        cumulative = np.cumsum(known.weights[order])
        # Sums of weights miss q by rounding errors, which must not skip a sample.
        position = int(np.searchsorted(cumulative, q - 1e-9))
        return float(known.values[order[min(position, len(order) - 1)]])

    def interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Return the central interval, from quantile (1 - confidence) / 2 to (1 + confidence) / 2, ends included.

        If values repeat, it contains more than the fraction `confidence` of the samples.
        """
        check_confidence(confidence)
        return self.quantile((1 - confidence) / 2), self.quantile((1 + confidence) / 2)

    def probability(self, comparison: str, threshold: float) -> float:
        """Return the weight of the samples for which `value comparison threshold` holds; not those without a value.

        Args:
            comparison: one of > >= < <= ==.
            threshold: the number to compare with.
        """
        if comparison not in COMPARISONS:
            raise unknown_name("comparison", comparison, COMPARISONS)
        if not is_number(threshold):
            raise UserError(f"threshold: expected a number, got {threshold!r}")
        return min(1.0, float(self.weights[COMPARISONS[comparison](self.values, threshold)].sum()))

    def readable(self) -> Measurement:
        """The same in ml if it is in mm³ and any value is at least 1 ml; otherwise unchanged.

        >>> Measurement("volume", np.array([900.0, 1500.0]), np.full(2, 0.5), "mm³").readable()
        volume: 1.2 ml, std 0.3, 90% 0.9 to 1.5 ml (2 samples)
        """
        return in_readable_unit([self])[0]

    def __repr__(self) -> str:
        low, high = self.interval()
        unit = f" {self.unit}" if self.unit else ""
        spread = f"std {self.std:.3g}, 90% {low:.4g} to {high:.4g}{unit}"
        lost = f", undefined in {self.undefined:.0%}" if self.undefined > 0 else ""
        return f"{self.name}: {self.mean:.4g}{unit}, {spread} ({len(self.values)} samples{lost})"

    def _repr_html_(self) -> str:
        return _table_html([self])


def in_readable_unit(measured: Sequence[Measurement]) -> list[Measurement]:
    """Convert measurements of one unit to ml if they are in mm³ and any value is at least 1 ml."""
    if any(each.unit != "mm³" for each in measured) or all(each.values.max() < MM3_PER_ML for each in measured):
        return list(measured)
    return [replace(each, values=each.values / MM3_PER_ML, unit="ml") for each in measured]


class Measurements(list[Measurement]):
    """A list of measurements of one image, shown as one table in notebooks."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return _table_html(self)


def _table_html(rows: Sequence[Measurement]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("", "mean", "std", "median", "90% of samples", ""))
    body = []
    for row in rows:
        low, high = row.interval()
        numbers = (f"{row.mean:.4g}", f"{row.std:.3g}", f"{row.quantile(0.5):.4g}", f"{low:.4g} – {high:.4g}", row.unit)
        cells = "".join(f"<td>{cell}</td>" for cell in numbers)
        body.append(f'<tr><th style="text-align:left">{html.escape(row.name)}</th>{cells}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def check_confidence(confidence: float) -> None:
    """Raise UserError unless the confidence is between 0 and 1."""
    if not is_number(confidence) or not 0 < confidence < 1:
        raise UserError(f"confidence: expected a number between 0 and 1, such as 0.9, got {confidence!r}")
