"""Pictures of one image for a gallery of a report; all have one width and show pixels to scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from stochseg.plotting.pictures import FloatArray, LabelArray, shrink

Content = ParamSpec("Content")

WIDTH = 2.9  # inches per picture, about 290 pixels on the screen
BAR = 0.4  # inches for a color bar below a picture


def _frame(picture: FloatArray | LabelArray, aspect: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """A figure filled by a picture "h w …", with `below` inches under it.

    aspect: height of a pixel divided by its width.
    """
    height, width = picture.shape[:2]
    tall = WIDTH * float(np.clip(aspect * height / width, 0.25, 1.6))
    figure = Figure(figsize=(WIDTH, tall + below))
    axis = figure.add_axes((0, below / (tall + below), 1, tall / (tall + below)))
    axis.set_axis_off()
    return figure, axis


def locator(picture: FloatArray, window: tuple[slice, slice], aspect: float = 1.0) -> Figure:
    """A picture "h w 3" with a box around a window."""
    (small,) = shrink(picture)
    figure, axis = _frame(small, aspect)
    axis.imshow(small, interpolation="nearest", aspect=aspect)
    scale = small.shape[0] / picture.shape[0]
    rows, columns = ((s.start * scale, (s.stop - s.start) * scale) for s in window)
    corner = columns[0] - 0.5, rows[0] - 0.5
    axis.add_patch(Rectangle(corner, columns[1], rows[1], fill=False, edgecolor="#ffd54a", linewidth=1.4))
    return figure


def overlay(
    picture: FloatArray,
    aspect: float,
    draw: Callable[Concatenate[Axes, FloatArray, Content], None],
    *content: Content.args,
    **named: Content.kwargs,
) -> Figure:
    """A picture "h w 3" with content over it, drawn by a function of `plotting.outlines`."""
    figure, axis = _frame(picture, aspect)
    draw(axis, picture, *content, **named)
    axis.set_aspect(aspect)
    return figure


def value_map(values: FloatArray, highest: float, colors: str, unit: str, aspect: float = 1.0) -> Figure:
    """Values "h w" from 0 to `highest` as colors, with a color bar below."""
    figure, axis = _frame(values, aspect, BAR)
    shown = axis.imshow(values, cmap=colors, vmin=0, vmax=highest, interpolation="nearest", aspect=aspect)
    tall = figure.get_size_inches()[1]
    below = figure.add_axes((0.05, 0.74 * BAR / tall, 0.78, 0.16 * BAR / tall))
    bar = figure.colorbar(shown, cax=below, orientation="horizontal", ticks=MaxNLocator(5))
    bar.ax.tick_params(labelsize=8.5, length=2, pad=1.5)
    bar.outline.set_visible(False)
    figure.text(0.86, 0.82 * BAR / tall, unit, fontsize=8.5, va="center")
    return figure
