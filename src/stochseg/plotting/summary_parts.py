"""Parts of the figure of everything that samples say: maps of values, histograms of sizes, titles."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from stochseg.analysis.measurement import Measurement
from stochseg.plotting.curves import style_axes
from stochseg.plotting.pictures import FloatArray
from stochseg.types import DatasetInfo

MAX_READINGS = 5  # with a picture of their own
GRAY = "#444444"


def set_title(axis: Axes, text: str) -> None:
    """Write a title over axes."""
    axis.set_title(text, fontsize=10, pad=4)


def show_values(axis: Axes, values: FloatArray, highest: float, colors: str, title: str) -> None:
    """Show values "h w" from 0 to `highest` as colors, with a color bar to the right."""
    shown = axis.imshow(values, cmap=colors, vmin=0, vmax=highest, interpolation="nearest")
    axis.set_axis_off()
    set_title(axis, title)
    right = axis.inset_axes((1.03, 0, 0.045, 1))
    bar = axis.figure.colorbar(shown, cax=right)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def show_sizes(axis: Axes, sizes: dict[int, Measurement], info: DatasetInfo, what: str = "area") -> None:
    """Draw one histogram of areas or volumes per class, with common bins."""
    top = max((float(size.values.max()) for size in sizes.values()), default=1.0)
    bins = np.linspace(0, top * 1.0001, 25).tolist()
    for label, size in sizes.items():
        low, high = size.interval(0.9)
        name = size.name.removeprefix(f"{what} of ")
        text = f"{name} {size.quantile(0.5):.4g} ({low:.4g} – {high:.4g})"
        opacity = 0.65 if len(sizes) > 1 else 0.9
        axis.hist(size.values, bins, weights=size.weights, color=info.colors[label], alpha=opacity, label=text)
    unit = next(iter(sizes.values())).unit if sizes else "px²"
    style_axes(axis, f"{what} ({unit})", "fraction of samples", size=9)
    axis.grid(False, axis="x")
    set_title(axis, f"{what}: median (90% of samples)")
    if sizes:
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (1.1 + 0.14 * len(sizes)))  # room for the legend above the bars
        axis.legend(fontsize=8, frameon=False, loc="upper right")
    else:
        axis.text(0.5, 0.5, "no sample marks anything", ha="center", va="center", transform=axis.transAxes, fontsize=9)
