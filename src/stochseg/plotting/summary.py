"""One figure of everything that the samples of an image say."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from torch import Tensor

from stochseg.analysis.image_samples import class_names, select_image
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import measure
from stochseg.analysis.readings import Hypothesis, hypotheses
from stochseg.errors import UserError
from stochseg.models.inputs import read_image
from stochseg.plotting.curves import style_axes
from stochseg.plotting.grids import bare_axes
from stochseg.plotting.outlines import add_legend, class_legend, draw_labels, draw_samples, draw_window
from stochseg.plotting.output import NotebookFigure
from stochseg.plotting.pictures import FloatArray, image_to_rgb, intensities_to_rgb
from stochseg.types import DatasetInfo, Samples, Spacing

CELL = 2.0  # inches per picture
MAX_READINGS = 5  # with a picture of their own
MAX_LEGEND = 5  # names over the outlines
LEAST_PROBABILITY = 0.01  # of a class with a picture of its own
GRAY = "#444444"


def plot(
    image: Tensor | npt.ArrayLike | Image.Image | str | Path,
    samples: Samples,
    info: DatasetInfo | None = None,
    *,
    spacing: Spacing | None = None,
    index: int | None = None,
) -> NotebookFigure:
    """Draw an image with the outlines of all samples, mean, entropy, areas, and the readings with probabilities.

    For more than two classes, the probability of each is drawn. A dashed box is the part that the model labels, if it
    is not the whole image.

    Args:
        image: raw intensities, as a PIL image, an array "h w" or "h w c" or the path of an image file, or a tensor
            "c h w" or "1 c h w" normalized for the model.
        samples: what the model drew for the image.
        info: names and colors of the classes, and normalization of tensors; default: `samples.info`.
        spacing: millimeters per pixel (row, column); without it, areas are in pixels.
        index: the image, required if the samples are of several images.

    Returns:
        A matplotlib figure, which notebooks show; write it with `figure.savefig("samples.png")`.

    Raises:
        UserError: if the image and the samples differ in size.

    >>> import stochseg
    >>> from stochseg.data import Phantoms
    >>> example = Phantoms("val", size=32)[0]
    >>> model = stochseg.create("ccdm-fast", num_classes=2, image_channels=1, tower=[8, 16], light=[8, 8])
    >>> figure = stochseg.plot(example.image, model.sample(example.image[None], n=4))
    >>> figure.savefig("/dev/null", format="png")
    """
    chosen = select_image(samples, index, info)
    index = index or 0
    info = chosen.info
    picture = _to_rgb(image, info, tuple(chosen.labels.shape[1:]))
    readings = hypotheses(samples, info=info, index=index)
    labels = [c for c in range(1, info.num_classes) if bool((chosen.labels == c).any())]
    columns = max(4, min(MAX_READINGS, len(readings)))
    tall = float(np.clip(picture.shape[0] / picture.shape[1], 0.4, 2.0))
    # Wide enough that the height limits every picture, so that all have one size.
    likely = _likely_classes(samples, index)
    lines = -(-len(likely) // columns)
    heights = [CELL * tall + 0.7, *[CELL * tall + 0.5] * lines, CELL * tall + 1.0]
    figure = NotebookFigure(
        figsize=(1.28 * CELL * columns, sum(heights)),
        layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.06, wspace=0.02, hspace=0.02),
    )
    top, *middle, bottom = np.asarray(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights))[:, 0]
    outlines, mean, entropy, areas = top.subplots(1, 4, width_ratios=[1, 1, 1, columns - 3])
    draw_samples(outlines, picture, chosen.labels.numpy(), chosen.weights.numpy(), info, labels)
    draw_window(outlines, samples.window)
    if 1 < len(labels) <= MAX_LEGEND:  # the pictures of the classes name them all
        add_legend(outlines, class_legend(info, labels))
    _set_title(outlines, f"outlines of {len(chosen.labels)} samples")
    foreground = (1 - samples.mean[index, 0]).cpu().numpy()
    _show_values(mean, foreground, 1.0, "viridis", "probability of foreground")
    highest = float(np.log(info.num_classes))
    _show_values(entropy, samples.entropy[index].cpu().numpy(), highest, "magma", "entropy (nats)")
    measured = {c: measure(samples, "area", label=c, spacing=spacing, index=index, info=info) for c in labels}
    _show_areas(areas, measured, info)
    cells = (axis for part in middle for axis in bare_axes(part, 1, columns)[0])
    for axis, label in zip(cells, likely, strict=False):
        _show_values(axis, samples.mean[index, label].cpu().numpy(), 1.0, "viridis", f"P({class_names(info)[label]})")
    _show_readings(bottom, picture, readings, len(chosen.labels), info, columns)
    return figure


def _likely_classes(samples: Samples, index: int) -> list[int]:
    """Foreground classes whose probability is drawn: none of two classes, else all that are likely anywhere."""
    highest = samples.mean[index].flatten(1).amax(1).tolist()
    return [c for c in range(1, len(highest)) if highest[c] >= LEAST_PROBABILITY] if len(highest) > 2 else []


def _to_rgb(
    image: Tensor | npt.ArrayLike | Image.Image | str | Path, info: DatasetInfo, size: tuple[int, ...]
) -> FloatArray:
    """Convert any accepted image to RGB "h w 3" in 0..1 and check its size."""
    if isinstance(image, Tensor):
        flat = image[0] if image.ndim == 4 and len(image) == 1 else image
        if flat.ndim != 3:
            raise UserError(f'plot: expected an image tensor "c h w", got shape {tuple(image.shape)}; pass image[i]')
        rgb = image_to_rgb(flat, info.normalization)
    else:
        raw = read_image(Path(image)) if isinstance(image, (str, Path)) else np.asarray(image)
        if raw.ndim not in (2, 3):
            raise UserError(f'plot: expected an image "h w" or "h w c", got shape {raw.shape}')
        rgb = intensities_to_rgb(raw)
    if rgb.shape[:2] != size:
        raise UserError(
            f"plot: the image is {rgb.shape[0]} x {rgb.shape[1]}, the samples are {size[0]} x {size[1]}; "
            "pass the image they were drawn for"
        )
    return rgb


def _set_title(axis: Axes, text: str) -> None:
    axis.set_title(text, fontsize=10, pad=4)


def _show_values(axis: Axes, values: FloatArray, highest: float, colors: str, title: str) -> None:
    shown = axis.imshow(values, cmap=colors, vmin=0, vmax=highest, interpolation="nearest")
    axis.set_axis_off()
    _set_title(axis, title)
    right = axis.inset_axes((1.03, 0, 0.045, 1))
    bar = axis.figure.colorbar(shown, cax=right)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _show_areas(axis: Axes, areas: dict[int, Measurement], info: DatasetInfo) -> None:
    """One histogram of areas per class, with common bins."""
    top = max((float(area.values.max()) for area in areas.values()), default=1.0)
    bins = np.linspace(0, top * 1.0001, 25).tolist()
    for label, area in areas.items():
        low, high = area.interval(0.9)
        name = area.name.removeprefix("area of ")
        text = f"{name} {area.quantile(0.5):.4g} ({low:.4g} – {high:.4g})"
        opacity = 0.65 if len(areas) > 1 else 0.9
        axis.hist(area.values, bins, weights=area.weights, color=info.colors[label], alpha=opacity, label=text)
    unit = next(iter(areas.values())).unit if areas else "px²"
    style_axes(axis, f"area ({unit})", "fraction of samples", size=9)
    axis.grid(False, axis="x")
    _set_title(axis, "area: median (90% of samples)")
    if areas:
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (1.1 + 0.14 * len(areas)))  # room for the legend above the bars
        axis.legend(fontsize=8, frameon=False, loc="upper right")
    else:
        axis.text(0.5, 0.5, "no sample marks anything", ha="center", va="center", transform=axis.transAxes, fontsize=9)


def _show_readings(
    figure: SubFigure, picture: FloatArray, readings: Sequence[Hypothesis], count: int, info: DatasetInfo, columns: int
) -> None:
    """One picture per reading with its probability, and a title with their number."""
    cells = bare_axes(figure, 1, columns)[0]
    names = [textwrap.fill(r.name, 28) for r in readings[:MAX_READINGS]]
    pad = 5 + 11 * max(1 + name.count("\n") for name in names)  # points above the names
    for axis, reading, name in zip(cells, readings, names, strict=False):
        draw_labels(axis, picture, reading.medoid.numpy(), info)
        low, high = reading.interval
        axis.set_title(f"{reading.probability:.0%} ({low:.0%} – {high:.0%})", fontsize=10, fontweight="bold", pad=pad)
        axis.text(0.5, 1.015, name, transform=axis.transAxes, ha="center", va="bottom", fontsize=9, color=GRAY)
    rest = readings[MAX_READINGS:]
    more = f"; {len(rest)} more have {sum(r.probability for r in rest):.0%} together" if rest else ""
    number = f"{len(readings)} readings" if len(readings) > 1 else "one reading"
    figure.suptitle(f"{number} of {count} samples{more}\n", fontsize=11, x=0.01, ha="left")
