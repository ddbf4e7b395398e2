"""Charts: quality against cost, training, calibration, known modes, histograms of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter

from stochseg.analysis.measurement import Measurement
from stochseg.errors import hyphenated
from stochseg.metrics import CalibrationBins, RiskCoverage
from stochseg.plotting.methods import score_titles
from stochseg.plotting.pictures import BLUE, GREEN, ORANGE, RED, FloatArray

GRAY = "0.6"


# --- quality and training --------------------------------------------------------------------------------


def quality_against_evaluations(curves: Mapping[str, Mapping[int, Mapping[str, float]]], *, n: int = 16) -> Figure:
    """Plot GED_n and HM-IoU_n against network evaluations per sample, one line per sampler (cf. CCDM Fig. 5).

    Args:
        curves: sampler -> evaluations -> metrics, as `evaluate` returns them.
        n: number of samples of the metrics.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    ticks: list[int] = []
    for count in sorted({count for points in curves.values() for count in points}, reverse=True):
        if not ticks or count < 0.8 * ticks[-1]:  # closer labels would overlap
            ticks.append(count)
    for axis, (key, title) in zip(figure.subplots(1, 2), score_titles(n).items(), strict=True):
        for name, points in curves.items():
            counts = sorted(points)
            axis.plot(counts, [points[count][key] for count in counts], "o-", label=name, markersize=4)
        axis.set(xscale="log", xlabel="network evaluations per sample", title=title)
        axis.set_xticks(ticks, [str(count) for count in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    return figure


def quality_against_cost(rows: Sequence[Mapping[str, Any]], *, n: int) -> Figure:
    """Plot GED_n and HM-IoU_n against the seconds of n samples (log scale), one line per model, engine and sampler.

    The number of network evaluations is written next to each point. The strided rule of the released code is dashed.
    Rows without scores, of untrained models, are skipped.

    Args:
        rows: results of `stochseg bench`.
        n: number of samples of the metrics.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    lines: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row[f"ged_{n}"] != "":
            line = tuple(str(row[key]) for key in ("model", "engine", "sampler", "grid", "noise", "height", "width"))
            lines.setdefault(line, []).append(row)
    sizes = {(row["height"], row["width"]) for row in rows}
    left, right = figure.subplots(1, 2)
    for axis, (key, title) in zip((left, right), score_titles(n).items(), strict=True):
        for (model, engine, sampler, grid, noise, height, width), points in lines.items():
            words = (model, sampler, grid, engine, noise, f"{height}×{width} pixels" if len(sizes) > 1 else "")
            label = ", ".join(word for word in words if word not in ("", "eager", "independent"))
            style = "s--" if hyphenated(sampler) == "one-step-kernel" else "o-"
            points = sorted(points, key=lambda row: int(row["evaluations"]))
            axis.plot([p["seconds"] for p in points], [p[key] for p in points], style, label=label, markersize=4)
            for p in points:
                place, text = (p["seconds"], p[key]), str(p["evaluations"])
                axis.annotate(text, place, textcoords="offset points", xytext=(4, 4), fontsize=7)
        axis.set(xscale="log", xlabel=f"seconds for {n} samples", title=title)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return figure


def training_curve(records: Sequence[Mapping[str, float]]) -> Figure:
    """Plot loss and validation GED, or mIoU if it selects the best checkpoint, against the optimizer step.

    Args:
        records: of the log of a run (log.jsonl).

    Returns:
        The figure.
    """
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    step, loss = _series(records, "train/loss")
    if len(step):
        left.plot(step, loss, color=BLUE, alpha=0.35, marker=_marker(step))
        left.plot(step, _smooth(loss), color=BLUE)
        left.set_yscale("log")
    selected = "val/miou" if any("val/miou" in record for record in records) else "val/ged"
    step, score = _series(records, selected)
    if len(step):
        right.plot(step, score, color=BLUE, marker=_marker(step))
    name = "mIoU (higher is better)" if selected == "val/miou" else "GED (lower is better)"
    for axis, title in ((left, "training loss per pixel"), (right, f"validation {name}")):
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
    return figure


def _series(records: Sequence[Mapping[str, float]], key: str) -> tuple[FloatArray, FloatArray]:
    points = np.array([(r["step"], r[key]) for r in records if key in r], dtype=np.float64).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _marker(step: FloatArray) -> str:
    return "" if len(step) > 30 else "o"


def _smooth(values: FloatArray) -> FloatArray:
    """Running mean over a twentieth of the curve, shorter at its ends."""
    half = max(1, len(values) // 40)
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


# --- agreement -------------------------------------------------------------------------------------------


def mode_frequencies(truth: FloatArray, frequency: FloatArray, names: Sequence[str]) -> Figure:
    """Plot the sampled frequency of each mode against its true probability.

    Args:
        truth: "images m", the true probabilities.
        frequency: "images m", the sampled frequencies.
        names: of the m modes.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(2.6 * len(names), 2.9), layout="constrained")
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for i, (axis, name) in enumerate(zip(axes, names, strict=True)):
        axis.plot([0, 1], [0, 1], color=GRAY, linewidth=1)
        axis.scatter(truth[:, i], frequency[:, i], s=16, color=ORANGE, alpha=0.7, edgecolors="none")
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title=name, xlabel="true probability", aspect="equal")
        axis.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))  # more would touch those of the next plot
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("frequency in samples")
    return figure


def reliability_diagram(bins: CalibrationBins) -> Figure:
    """Plot how often raters chose a label against its predicted probability, and below the number of pixels.

    Args:
        bins: of `calibration_bins` or `foreground_bins`.

    Returns:
        The figure.
    """
    count = bins.count.numpy()
    filled = count > 0
    confidence = bins.confidence_sum.numpy()[filled] / count[filled]
    frequency = bins.correct_sum.numpy()[filled] / count[filled]
    figure = Figure(figsize=(3.6, 3.8), layout="constrained")
    axis, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    axis.plot([0, 1], [0, 1], color=GRAY, linewidth=1)
    axis.plot(confidence, frequency, "o-", color=BLUE, markersize=5, linewidth=1.2)
    axis.set(xlim=(0, 1), ylim=(0, 1))
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(PercentFormatter(1.0, decimals=0))
    style_axes(axis, "", "fraction of raters")
    edges = np.linspace(0, 1, len(count) + 1)
    below.bar(edges[:-1], count, width=1 / len(count), align="edge", color=BLUE, alpha=0.5, edgecolor="white")
    below.set_yscale("log")
    style_axes(below, "predicted probability", "pixels")
    return figure


def scatter(x: FloatArray, y: FloatArray, x_label: str, y_label: str) -> Figure:
    """Plot one point per image, with the diagonal."""
    figure = Figure(figsize=(3.6, 3.8), layout="constrained")
    axis = figure.subplots()
    top = max(float(x.max()), float(y.max()), 1e-6)
    axis.plot([0, top], [0, top], color=GRAY, linewidth=1)
    axis.scatter(x, y, s=16, color=ORANGE, alpha=0.6, edgecolors="none", rasterized=len(x) > 500)
    style_axes(axis, x_label, y_label)
    return figure


def risk_against_coverage(curve: RiskCoverage) -> Figure:
    """Plot the risk of the most confident cases against the fraction that is kept.

    Args:
        curve: of `stochseg.metrics.risk_coverage`.

    Returns:
        The figure, with the best order of the same cases and the risk of a random one.
    """
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.axhline(curve.random_area, color=GRAY, linewidth=1.2, linestyle=":", label="random order")
    axis.plot(curve.coverage, curve.risk, color=BLUE, linewidth=1.8, label="sorted by confidence")
    axis.plot(curve.coverage, curve.best, color=GREEN, linewidth=1.2, linestyle="--", label="best order")
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    style_axes(axis, "images kept, the most confident first", "mean risk of those kept")
    axis.legend(frameon=False, fontsize=8.5)
    return figure


def histogram(
    measured: Measurement,
    color: str,
    *,
    raters: Measurement | None = None,
    thresholds: Sequence[float] = (),
    calibrated: tuple[float, float] | None = None,
) -> Figure:
    """Plot the distribution of a measurement with its mean and 90% interval.

    Args:
        measured: one number per sample.
        color: of the bars, such as "#e8853c".
        raters: the same measurement of the raters, marked by triangles.
        thresholds: values marked by dotted lines.
        calibrated: ends of the calibrated interval, marked by dashed lines.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(2.9, 1.9), layout="constrained")
    axis = figure.subplots()
    bins = _bins(measured, [*(raters.values if raters else ()), *thresholds, *(calibrated or ())])
    axis.axvspan(*measured.interval(0.9), color="#e6ebf1", zorder=0.5)
    axis.hist(measured.values, bins.tolist(), weights=measured.weights, color=color, alpha=0.9)
    axis.axvline(measured.mean, color=BLUE, linewidth=1.6)
    for threshold in thresholds:
        axis.axvline(threshold, color=RED, linewidth=1.2, linestyle=":")
    for end in calibrated or ():
        axis.axvline(end, color=GREEN, linewidth=1.4, linestyle="--")
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # no ticks at 2.5%, which would read 2%
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    margin = 0.02 * (bins[-1] - bins[0])
    axis.set_xlim(bins[0] - margin, bins[-1] + margin)
    name = measured.name.partition(",")[0]  # the part that fits
    style_axes(axis, f"{name} ({measured.unit})" if measured.unit else name, "fraction of samples")
    axis.set_ylim(0, axis.get_ylim()[1] * (1.25 if raters else 1.05))
    if raters:
        _mark_raters(axis, raters)
    return figure


def _bins(measured: Measurement, others: Sequence[float]) -> FloatArray:
    """Edges of the bins of a histogram that spans the measurement and other values."""
    shown = np.concatenate([measured.values, np.array(others, dtype=np.float64)])
    low, high = float(shown.min()), float(shown.max())
    if measured.unit == "":  # counts
        return np.arange(np.floor(low), np.floor(high) + 2) - 0.5
    if high - low < 1e-9 * max(1.0, abs(high)):
        return np.linspace(low - 0.5, low + 0.5, 4)
    return np.linspace(low, high, 21)


def _mark_raters(axis: Axes, raters: Measurement) -> None:
    """One triangle per rater at the top, equal values below each other."""
    top = axis.get_ylim()[1]
    for value, count in zip(*np.unique(raters.values, return_counts=True), strict=True):
        heights = [top * (0.97 - 0.09 * i) for i in range(count)]
        axis.plot([value] * count, heights, "v", color=ORANGE, markersize=6, markeredgecolor="white", mew=0.5)


def style_axes(axis: Axes, x_label: str, y_label: str, size: float = 8.5) -> None:
    """Name the axes in text of `size` points; draw a light grid and no box."""
    axis.set_xlabel(x_label, fontsize=size)
    axis.set_ylabel(y_label, fontsize=size)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
