"""Outlines and label maps drawn over a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stochseg.analysis.image_samples import class_names
from stochseg.plotting.pictures import FloatArray, LabelArray, palette
from stochseg.types import DatasetInfo

RATER_COLORS = ("#e8853c", "#4aa3ff", "#57d27e", "#e86bd0", "#f2d64b", "#8de3e0")
MAX_LEGEND = 8  # entries of a legend over a picture


def draw_outline(axis: Axes, region: npt.NDArray[np.bool_], color: str, **style: Any) -> None:
    """Draw the outline of a region "h w", closed where it touches the border of the picture."""
    if region.any():
        h, w = region.shape
        padded = np.pad(region, 1).astype(float)
        axis.contour(np.arange(-1, w + 1), np.arange(-1, h + 1), padded, levels=[0.5], colors=[color], **style)


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
    if len(labels) > 1:
        names = class_names(info)
        _legend(axis, [(names[c], info.colors[c]) for c in labels])


def draw_raters(axis: Axes, picture: FloatArray, maps: LabelArray, names: Sequence[str]) -> None:
    """Draw the outlines of every rater "k h w" over a picture "h w 3", one color per rater."""
    axis.imshow(picture, interpolation="nearest")
    entries = []
    for i, (labels, name) in enumerate(zip(maps, names, strict=True)):
        color = RATER_COLORS[i % len(RATER_COLORS)]
        for label in np.unique(labels[labels > 0]):
            # Later raters are thinner, so that both are visible where two drew the same line.
            draw_outline(axis, labels == label, color, linewidths=max(0.7, 2.2 - 0.5 * i))
        entries.append((name if (labels > 0).any() else f"{name}: nothing", color))
    fit_axes(axis, picture.shape)
    _legend(axis, entries)


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


def _legend(axis: Axes, entries: Sequence[tuple[str, str]]) -> None:
    handles = [Line2D([], [], color=color, label=name) for name, color in entries[:MAX_LEGEND]]
    axis.legend(handles=handles, fontsize=8.5, loc="lower left", framealpha=0.7, handlelength=1.2, borderpad=0.3)
