"""Charts of compared methods: bars, learning curves, scores with intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stochseg.plotting.pictures import BLUE, GREEN, ORANGE


def score_titles(n: int) -> dict[str, str]:
    """Titles of the two main metrics by key."""
    return {f"ged_{n}": f"GED$_{{{n}}}$ (lower is better)", f"hm_iou_{n}": f"HM-IoU$_{{{n}}}$ (higher is better)"}


def method_bars(rows: Sequence[Mapping[str, Any]], *, n: int) -> Figure:
    """Draw GED_n, HM-IoU_n and seconds per sample of compared methods as bars, the first row on top.

    Args:
        rows: results of `stochseg compare`.
        n: number of samples of the metrics.

    Returns:
        The figure.
    """
    names = [textwrap.fill(row["method"], 32) for row in rows]  # settings make the name of a method long
    breaks = max(name.count("\n") for name in names)
    figure = Figure(figsize=(9.0, (0.32 + 0.13 * breaks) * len(rows) + 1.0), layout="constrained")
    place = np.arange(len(rows))[::-1]
    ged, hm_iou = score_titles(n).values()
    columns = (("ged", ged, BLUE), ("hm_iou", hm_iou, GREEN), ("seconds_per_sample", "seconds per sample", ORANGE))
    for axis, (key, title, color) in zip(figure.subplots(1, 3, sharey=True), columns, strict=True):
        axis.barh(place, [row[key] for row in rows], color=color, height=0.65)
        axis.set_yticks(place, names, fontsize=8 if breaks else 10)
        axis.set_title(title, fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    axis.set_xscale("log")  # of the seconds
    return figure


def learning_curves(curves: Mapping[str, Sequence[tuple[float, float]]], blind: float | None) -> Figure:
    """Plot GED_16 against minutes of training, one line per method.

    Args:
        curves: points (minutes, GED) by method.
        blind: GED of label maps of other images, drawn as a dashed line; None: unknown.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axis = figure.subplots()
    for number, (name, points) in enumerate(sorted(curves.items(), key=lambda item: [ged for _, ged in item[1]][-1:])):
        if points:
            style = ("-", "--", ":")[number // 10 % 3]
            axis.plot(*zip(*points, strict=True), style, marker=".", label=textwrap.shorten(name, 48))
    if blind is not None:
        axis.axhline(blind, color="0.4", linestyle="--", linewidth=1, label="blind")
    axis.set_xlabel("minutes of one core")
    axis.set_ylabel("GED$_{16}$ (lower is better)")
    axis.grid(alpha=0.3)
    if axis.has_data():
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def method_intervals(
    scores: Mapping[str, tuple[float, tuple[float, float]]], references: Mapping[str, float]
) -> Figure:
    """Plot the GED_16 of methods with their intervals, the best on top.

    Args:
        scores: GED and its interval by method.
        references: GED by name, drawn as dashed lines.

    Returns:
        The figure.
    """
    order = sorted(scores, key=lambda name: scores[name][0])
    figure = Figure(figsize=(7.2, 0.3 * len(order) + 1.2), layout="constrained")
    axis = figure.subplots()
    place = np.arange(len(order))[::-1]
    for y, name in zip(place, order, strict=True):
        ged, (low, high) = scores[name]
        axis.plot((low, high), (y, y), color=BLUE, linewidth=1.5)
        axis.plot(ged, y, "o", color=BLUE, markersize=5)
    for name, ged in references.items():
        axis.axvline(ged, color="0.4", linestyle="--", linewidth=1)
        axis.annotate(name, (ged, 1.01), xycoords=("data", "axes fraction"), rotation=40, fontsize=8)  # may be close
    axis.set_yticks(place, [textwrap.shorten(name, 48) for name in order], fontsize=8)
    axis.set_xlabel("GED$_{16}$ with 95% interval (lower is better)")
    axis.grid(axis="x", alpha=0.3)
    return figure
