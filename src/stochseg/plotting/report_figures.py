"""The pictures of a report, each a data URI: pictures of pixels as PNG or JPEG, plots as SVG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image

from stochseg.analysis.measurement import Measurement
from stochseg.metrics import CalibrationBins
from stochseg.plotting.figures import INK, RATER_COLORS, SECOND
from stochseg.plotting.summary import draw_outline, draw_outlines, draw_reading
from stochseg.types import DatasetInfo

WIDTH = 2.9  # inches of a picture in a gallery, about 290 pixels on the screen
DPI = 180
SIDE = 640  # pixels of the longer side that are drawn; more could not be told apart
HEAVY = 70_000  # bytes of a PNG above which it is written as JPEG
BAR = 0.36  # inches for a color bar below a picture


# --- a figure inside the page ----------------------------------------------------------------------------


def embed_picture(figure: Figure, dpi: int = DPI) -> str:
    """As PNG; as JPEG if it is a photograph, which PNG does not compress."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", pil_kwargs={"optimize": True})
    kind = "png"
    if buffer.tell() > HEAVY:
        picture, kind = Image.open(buffer).convert("RGB"), "jpeg"
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=82, subsampling=0, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def embed_plot(figure: Figure) -> str:
    """As SVG, its text as text; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "stochseg"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# --- pictures of an image --------------------------------------------------------------------------------


def shrunk(picture: np.ndarray, *maps: np.ndarray) -> tuple[np.ndarray, ...]:
    """A picture "h w 3" in [0, 1] and maps "… h w" of it, small enough to draw: averages, and the middle pixels."""
    h, w = picture.shape[:2]
    step = -(-max(h, w) // SIDE)
    if step == 1:
        return picture, *maps
    small = Image.fromarray((picture * 255).round().astype(np.uint8)).reduce(step)
    rows, columns = (np.minimum(np.arange(-(-size // step)) * step + step // 2, size - 1) for size in (h, w))
    return np.asarray(small) / 255, *(part[..., rows[:, None], columns] for part in maps)


def _frame(height: int, width: int, aspect: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """A figure that a picture of this size fills, with `below` inches of room under it. aspect: height of a pixel, its
    width being 1."""
    tall = WIDTH * float(np.clip(aspect * height / width, 0.25, 1.6))
    figure = Figure(figsize=(WIDTH, tall + below))
    axis = figure.add_axes((0, below / (tall + below), 1, tall / (tall + below)))
    axis.set_axis_off()
    return figure, axis


def whole(picture: np.ndarray, window: tuple[slice, slice], aspect: float = 1.0) -> Figure:
    """A picture "h w 3" with a box around a part of it."""
    (small,) = shrunk(picture)
    figure, axis = _frame(*small.shape[:2], aspect)
    axis.imshow(small, interpolation="nearest", aspect=aspect)
    scale = small.shape[0] / picture.shape[0]
    rows, columns = ((s.start * scale, (s.stop - s.start) * scale) for s in window)
    corner = columns[0] - 0.5, rows[0] - 0.5
    axis.add_patch(Rectangle(corner, columns[1], rows[1], fill=False, edgecolor="#ffd54a", linewidth=1.4))
    return figure


def outlines(
    picture: np.ndarray,
    maps: np.ndarray,
    weights: np.ndarray,
    info: DatasetInfo,
    labels: list[int],
    aspect: float = 1.0,
) -> Figure:
    """A picture "h w 3" with the outlines of all samples "n h w"."""
    figure, axis = _frame(*picture.shape[:2], aspect)
    draw_outlines(axis, picture, maps, weights, info, labels)
    axis.set_aspect(aspect)
    return figure


def rater_outlines(picture: np.ndarray, maps: np.ndarray, names: Sequence[str], aspect: float = 1.0) -> Figure:
    """A picture "h w 3" with what each rater "k h w" marked, a color a rater."""
    figure, axis = _frame(*picture.shape[:2], aspect)
    axis.imshow(picture, interpolation="nearest", aspect=aspect)
    handles = []
    for i, (labels, name) in enumerate(zip(maps, names, strict=True)):
        color = RATER_COLORS[i % len(RATER_COLORS)]
        for label in np.unique(labels[labels > 0]):
            # Later raters are thinner: where two drew the same line, both are seen.
            draw_outline(axis, labels == label, color, linewidths=max(0.7, 2.2 - 0.5 * i))
        text = name if (labels > 0).any() else f"{name}: nothing"
        handles.append(Line2D([], [], color=color, label=text))
    axis.set_xlim(-0.5, picture.shape[1] - 0.5)
    axis.set_ylim(picture.shape[0] - 0.5, -0.5)
    axis.legend(handles=handles[:8], fontsize=6.5, loc="lower left", framealpha=0.7, handlelength=1.2, borderpad=0.3)
    return figure


def reading(picture: np.ndarray, labels: np.ndarray, info: DatasetInfo, aspect: float = 1.0) -> Figure:
    """A picture "h w 3" with one label map "h w" in colors."""
    figure, axis = _frame(*picture.shape[:2], aspect)
    draw_reading(axis, picture, labels, info)
    axis.set_aspect(aspect)
    return figure


def value_map(values: np.ndarray, highest: float, colors: str, unit: str, aspect: float = 1.0) -> Figure:
    """Values "h w" from 0 to `highest` as colors, with the scale below."""
    figure, axis = _frame(*values.shape, aspect, BAR)
    axis.imshow(values, cmap=colors, vmin=0, vmax=highest, interpolation="nearest", aspect=aspect)
    tall = figure.get_size_inches()[1]
    below = figure.add_axes((0.05, 0.72 * BAR / tall, 0.78, 0.16 * BAR / tall))
    bar = figure.colorbar(ScalarMappable(Normalize(0, highest), colormaps[colors]), cax=below, orientation="horizontal")
    bar.locator = MaxNLocator(5)
    bar.update_ticks()
    bar.ax.tick_params(labelsize=7, length=2, pad=1.5)
    bar.outline.set_visible(False)
    figure.text(0.86, 0.8 * BAR / tall, unit, fontsize=7.5, va="center")
    return figure


# --- plots -----------------------------------------------------------------------------------------------


def _plain(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x, fontsize=8.5)
    axis.set_ylabel(y, fontsize=8.5)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)


def histogram(
    measured: Measurement, color: str, *, raters: Measurement | None = None, thresholds: Sequence[float] = ()
) -> Figure:
    """Shares of the samples by value; the mean, the interval of 90%, the raters' values and thresholds are marked."""
    shown = np.concatenate([measured.values, raters.values if raters else [], list(thresholds)])
    low, high = float(shown.min()), float(shown.max())
    if measured.unit == "":  # counts
        bins = np.arange(np.floor(low), np.floor(high) + 2) - 0.5
    elif high - low < 1e-9 * max(1.0, abs(high)):
        bins = np.linspace(low - 0.5, low + 0.5, 4)
    else:
        bins = np.linspace(low, high, 21)
    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(*measured.interval(0.9), color="#e6ebf1", zorder=0.5)
    axis.hist(measured.values, bins, weights=measured.weights, color=color, alpha=0.9)
    axis.axvline(measured.mean, color=INK, linewidth=1.6)
    for threshold in thresholds:
        axis.axvline(threshold, color="#b3261e", linewidth=1.2, linestyle=":")
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # no ticks at 2.5%, which would be called 2%
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xlim(bins[0] - 0.02 * (bins[-1] - bins[0]), bins[-1] + 0.02 * (bins[-1] - bins[0]))
    name = measured.name.partition(",")[0]  # which there is room for
    _plain(axis, f"{name} ({measured.unit})" if measured.unit else name, "share of samples")
    axis.set_ylim(0, axis.get_ylim()[1] * (1.25 if raters else 1.05))
    if raters:
        top = axis.get_ylim()[1]
        values, counts = np.unique(raters.values, return_counts=True)
        for value, count in zip(values, counts, strict=True):  # equal values stand below each other
            heights = [top * (0.97 - 0.09 * i) for i in range(count)]
            axis.plot([value] * count, heights, "v", color=SECOND, markersize=6, markeredgecolor="white", mew=0.5)
    return figure


def reliability_diagram(bins: CalibrationBins) -> Figure:
    """How often raters chose a label against the probability the model gave it; below, how many pixels that is."""
    count = bins.count.numpy()
    filled = count > 0
    said = bins.confidence_sum.numpy()[filled] / count[filled]
    found = bins.correct_sum.numpy()[filled] / count[filled]
    figure = Figure(figsize=(3.6, 4.0), layout="constrained")
    axis, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    axis.plot(said, found, "o-", color=INK, markersize=5, linewidth=1.2)
    axis.set(xlim=(0, 1), ylim=(0, 1))
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _plain(axis, "", "share of raters")
    edges = np.linspace(0, 1, len(count) + 1)
    below.bar(edges[:-1], count, width=1 / len(count), align="edge", color=INK, alpha=0.5, edgecolor="white")
    below.set_yscale("log")
    _plain(below, "probability the model gives", "pixels")
    return figure


def scatter(x: np.ndarray, y: np.ndarray, x_name: str, y_name: str, *, diagonal: bool) -> Figure:
    """One point an image."""
    figure = Figure(figsize=(3.6, 3.3), layout="constrained")
    axis = figure.subplots()
    if diagonal:
        top = max(float(x.max()), float(y.max()), 1e-6)
        axis.plot([0, top], [0, top], color="0.6", linewidth=1)
    axis.scatter(x, y, s=16, color=SECOND, alpha=0.6, edgecolors="none", rasterized=len(x) > 500)
    _plain(axis, x_name, y_name)
    return figure
