"""Numbers as text on pages."""

from __future__ import annotations

from stochseg.analysis.measurement import Measurement


def number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the point: "0.0123", "12,346"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent_range(interval: tuple[float, float]) -> str:
    """Format an interval of probabilities: "10% – 25%"."""
    return f"{interval[0]:.0%} – {interval[1]:.0%}"


def mean_and_interval(measured: Measurement) -> str:
    """Format the mean of a measurement with its 90% interval and unit."""
    low, high = measured.interval(0.9)
    return f"{number(measured.mean)} ({number(low)} – {number(high)}) {measured.unit}".rstrip()


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: "1 sample", "3 samples"."""
    return f"{count} {noun}{'s' * (count != 1)}"
