"""Outlines and label maps drawn over a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from contourpy import contour_generator
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from stochseg.analysis.image_samples import class_names
from stochseg.analysis.margins import BAND, INSIDE, OUTSIDE
from stochseg.plotting.pictures import FloatArray, LabelArray, palette
from stochseg.types import DatasetInfo, Window, distinct_colors

RATER_COLORS = ("#e8853c", "#4aa3ff", "#57d27e", "#e86bd0", "#f2d64b", "#8de3e0")
PAGE = 10.0  # inches; wider figures are shown reduced to this width
LEGEND_COLUMN = 1.6  # inches per name below a figure

Legend = Sequence[tuple[str, str]]
"""Names with their colors."""


def draw_outline(axis: Axes, region: npt.NDArray[np.bool_], color: str, **style: Any) -> None:
    """Draw the outline of a region "h w", closed where it touches the border of the picture."""
    if region.any():
        h, w = region.shape
        padded = np.pad(region, 1).astype(float)
        axis.contour(np.arange(-1, w + 1), np.arange(-1, h + 1), padded, levels=[0.5], colors=[color], **style)


def outline_lines(region: npt.NDArray[np.bool_]) -> list[list[list[float]]]:
    """The outline of a region "h w" as `draw_outline` draws it: closed lines of points (x, y) in pixels.

    >>> outline_lines(np.ones((1, 1), bool))
    [[[-0.5, 0.0], [0.0, -0.5], [0.5, 0.0], [0.0, 0.5], [-0.5, 0.0]]]
    """
    h, w = region.shape
    lines = contour_generator(np.arange(-1, w + 1), np.arange(-1, h + 1), np.pad(region, 1).astype(float)).lines(0.5)
    return [np.asarray(line).round(2).tolist() for line in lines]


def draw_samples(
    axis: Axes,
    picture: FloatArray,
    maps: LabelArray,
    weights: npt.NDArray[np.float64],
    info: DatasetInfo,
    labels: Sequence[int],
) -> None:
    """Draw the outlines of these classes in all samples "n h w" over a picture "h w 3"; frequent ones are stronger."""
    axis.imshow(picture, interpolation="nearest")
    axis.set_axis_off()
    # Identical samples are drawn once, more opaque: a thousand lines would only be slow.
    unique, place = np.unique(maps.reshape(len(maps), -1), axis=0, return_inverse=True)
    weight = np.bincount(place.ravel(), weights=weights)
    faintest = min(0.8, max(0.3, 4 / len(unique)))
    for flat, part in zip(unique, weight, strict=True):
        for label in reversed(labels):  # an inner region is drawn over the ring around it
            region = flat.reshape(maps.shape[1:]) == label
            draw_outline(axis, region, info.colors[label], linewidths=1.0, alpha=float(max(faintest, part**0.5)))
    fit_axes(axis, picture.shape)


def draw_raters(axis: Axes, picture: FloatArray, maps: LabelArray) -> None:
    """Draw the outlines of every rater "k h w" over a picture "h w 3", one of `rater_colors` per rater."""
    axis.imshow(picture, interpolation="nearest")
    for i, (labels, color) in enumerate(zip(maps, rater_colors(len(maps)), strict=True)):
        for label in np.unique(labels[labels > 0]):
            # Later raters are thinner, so that both are visible where two drew the same line.
            draw_outline(axis, labels == label, color, linewidths=max(0.7, 2.2 - 0.5 * i))
    fit_axes(axis, picture.shape)


def draw_margins(axis: Axes, picture: FloatArray, maps: LabelArray, colors: Sequence[str]) -> None:
    """Draw margin maps "c h w" (0 outside, 1 in the band, 2 inside) over a picture "h w 3": tinted, with both ends."""
    mixed = picture
    for margin, color in zip(maps, colors, strict=True):
        mixed = np.where((margin == BAND)[..., None], 0.65 * mixed + 0.35 * np.array(to_rgb(color)), mixed)
    axis.imshow(mixed, interpolation="nearest")
    for margin, color in zip(maps, colors, strict=True):
        draw_outline(axis, margin != OUTSIDE, color, linewidths=1.2)
        draw_outline(axis, margin == INSIDE, color, linewidths=1.2)
    fit_axes(axis, picture.shape)


def draw_window(axis: Axes, window: Window | None, origin: tuple[float, float] = (0, 0), scale: float = 1) -> None:
    """Draw a dashed box around the part of an image that its model labels; nothing if that is all of it.

    origin: row and column of the image at the first pixel of the picture; scale: pixels of the picture per pixel.
    """
    if window is None:
        return
    (top, bottom), (left, right) = (
        ((start - first) * scale - 0.5, (stop - first) * scale - 0.5)
        for (start, stop), first in zip(window, origin, strict=True)
    )
    box = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white", linestyle=(0, (4, 3)))
    axis.add_patch(box)


def rater_colors(count: int) -> tuple[str, ...]:
    """One color per rater."""
    return distinct_colors(RATER_COLORS, count)


def rater_legend(names: Sequence[str], maps: LabelArray) -> Legend:
    """Names and colors of the raters of an image "k h w"; who marks nothing is named, too. names: () if unknown."""
    names = names or tuple(f"rater {i + 1}" for i in range(len(maps)))
    named = (name if (labels > 0).any() else f"{name}: nothing" for name, labels in zip(names, maps, strict=True))
    return list(zip(named, rater_colors(len(maps)), strict=True))


def class_legend(info: DatasetInfo, labels: Sequence[int] | None = None) -> Legend:
    """Names and colors of these classes, by default of all except the background."""
    names = class_names(info)
    return [(names[c], info.colors[c]) for c in (range(1, info.num_classes) if labels is None else labels)]


def draw_labels(axis: Axes, picture: FloatArray, labels: LabelArray, info: DatasetInfo) -> None:
    """Draw a label map "h w" in the colors of the classes over a picture "h w 3"."""
    marked = (labels > 0)[..., None]
    mixed = np.where(marked, 0.65 * picture + 0.35 * palette(info)[labels], picture)
    axis.imshow(mixed, interpolation="nearest")
    for label in np.unique(labels[labels > 0])[::-1]:
        draw_outline(axis, labels == label, info.colors[label], linewidths=1.4)
    fit_axes(axis, picture.shape)


def fit_axes(axis: Axes, shape: Sequence[int]) -> None:
    """Limit the axes to the pixels of a picture of shape "h w …": outlines extend them."""
    axis.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5))


def add_legend(target: Axes | Figure, legend: Legend) -> None:
    """Add a legend over a picture, or below a figure of constrained layout."""
    handles = [Line2D([], [], color=color, linewidth=3, label=name) for name, color in legend]
    if isinstance(target, Axes):
        target.legend(handles=handles, fontsize=8.5, loc="lower left", framealpha=0.7, handlelength=1.2, borderpad=0.3)
        return
    scale = max(1.0, float(target.get_size_inches()[0]) / PAGE)
    columns = max(1, min(len(legend), int(target.get_size_inches()[0] / (scale * LEGEND_COLUMN))))
    size = 9 * scale  # points; wide figures are shown reduced
    target.legend(
        handles=handles, fontsize=size, loc="outside lower left", ncols=columns, frameon=False, handlelength=1
    )
