"""One figure of everything that the samples of a volume say."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from stochseg.analysis.image_samples import ImageSamples
from stochseg.analysis.measurement import in_readable_unit
from stochseg.analysis.measures import measure
from stochseg.analysis.readings import Hypotheses, hypotheses
from stochseg.plotting.grids import bare_axes
from stochseg.plotting.outlines import add_legend, class_legend, draw_labels, draw_samples
from stochseg.plotting.output import NotebookFigure
from stochseg.plotting.pictures import FloatArray, LabelArray, intensities_to_rgb
from stochseg.plotting.planes import VolumeView, marked_view
from stochseg.plotting.summary_parts import GRAY, MAX_READINGS, set_title, show_sizes, show_values
from stochseg.types import DatasetInfo, Samples, Spacing

CELL = 2.0  # inches per picture


def plot_volume(
    raw: npt.NDArray[Any], samples: Samples, image: ImageSamples, spacing: Spacing | None
) -> NotebookFigure:
    """Draw three planes with the outlines of all samples, mean probability, volumes, and the readings.

    raw: intensities "d h w c"; samples: of this volume only; image: the same label maps with their weights and names.
    """
    info, view = image.info, marked_view([image.labels], spacing)
    picture = intensities_to_rgb(raw[view.window], 3)
    readings = hypotheses(image)
    labels = [c for c in range(1, info.num_classes) if bool((image.labels == c).any())]
    columns = max(4, min(MAX_READINGS, len(readings)))
    ratios = [view.sides(plane)[0] / view.sides(plane)[1] for plane in range(3)]
    tall = [CELL * float(np.clip(ratio, 0.3, 2.0)) for ratio in ratios]
    heights = [max(tall) + 0.7, max(tall) + 0.5, sum(tall) + 1.2]
    figure = NotebookFigure(
        figsize=(1.28 * CELL * columns, sum(heights)),
        layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.06, wspace=0.02, hspace=0.02),
    )
    top, middle, bottom = np.asarray(figure.subfigures(3, 1, squeeze=False, height_ratios=heights))[:, 0]
    *outlines, sizes = top.subplots(1, 4, width_ratios=[1, 1, 1, columns - 3])
    *means, entropy = middle.subplots(1, 4, width_ratios=[1, 1, 1, columns - 3])
    maps, weights = view.crop(image.labels.numpy()), image.weights.numpy()
    foreground = view.crop((1 - samples.mean[0, 0]).cpu().numpy())
    for plane, name in enumerate(view.names):
        part = view.cut_picture(picture, plane)
        draw_samples(outlines[plane], part, view.cut(maps, plane), weights, info, labels)
        view.draw_lines(outlines[plane], plane)
        view.draw_window(outlines[plane], plane, samples.window)
        set_title(outlines[plane], f"{name}: {len(maps)} samples")
        show_values(means[plane], view.cut(foreground, plane), 1.0, "viridis", f"{name}: probability")
        for axis in (outlines[plane], means[plane]):
            axis.set_aspect(view.aspect(plane))
    if len(labels) > 1:
        add_legend(outlines[0], class_legend(info, labels))
    nats = view.crop(samples.entropy[0].cpu().numpy())
    show_values(entropy, view.cut(nats, 0), float(np.log(info.num_classes)), "magma", f"{view.names[0]}: entropy")
    entropy.set_aspect(view.aspect(0))
    volumes = in_readable_unit([measure(image, "volume", label=c, spacing=spacing) for c in labels])
    show_sizes(sizes, dict(zip(labels, volumes, strict=True)), info, "volume")
    _show_readings(bottom, picture, readings, view, len(maps), columns, tall)
    return figure


def _show_readings(
    figure: SubFigure,
    picture: FloatArray,
    readings: Hypotheses,
    view: VolumeView,
    count: int,
    columns: int,
    tall: list[float],
) -> None:
    """One column of three planes per reading with its probability, and a title with their number."""
    info = readings.info
    assert info is not None
    cells = bare_axes(figure, 3, columns, height_ratios=tall)
    names = [textwrap.fill(r.name, 28) for r in readings[:MAX_READINGS]]
    pad = 5 + 11 * max(1 + name.count("\n") for name in names)  # points above the names
    for column, (reading, name) in enumerate(zip(readings, names, strict=False)):
        for plane in range(3):
            _draw_plane(cells[plane, column], picture, view.crop(reading.medoid.numpy()), view, plane, info)
        first, (low, high) = cells[0, column], reading.interval
        first.set_title(f"{reading.probability:.0%} ({low:.0%} – {high:.0%})", fontsize=10, fontweight="bold", pad=pad)
        first.text(0.5, 1.015, name, transform=first.transAxes, ha="center", va="bottom", fontsize=9, color=GRAY)
    rest = readings[MAX_READINGS:]
    more = f"; {len(rest)} more have {sum(r.probability for r in rest):.0%} together" if rest else ""
    number = f"{len(readings)} readings" if len(readings) > 1 else "one reading"
    figure.suptitle(f"{number} of {count} samples of the whole volume{more}\n", fontsize=11, x=0.01, ha="left")


def _draw_plane(
    axis: Axes, picture: FloatArray, labels: LabelArray, view: VolumeView, plane: int, info: DatasetInfo
) -> None:
    draw_labels(axis, view.cut_picture(picture, plane), view.cut(labels, plane), info)
    axis.set_aspect(view.aspect(plane))
