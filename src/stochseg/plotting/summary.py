"""One figure of everything that the samples of an image say."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from torch import Tensor

from stochseg.analysis.image_samples import class_names, select_image
from stochseg.analysis.measures import measure
from stochseg.analysis.readings import Hypothesis, hypotheses
from stochseg.errors import UserError
from stochseg.models.inputs import read_image
from stochseg.plotting.grids import bare_axes
from stochseg.plotting.outlines import add_legend, class_legend, draw_labels, draw_samples, draw_window
from stochseg.plotting.output import NotebookFigure
from stochseg.plotting.pictures import FloatArray, intensities_to_rgb
from stochseg.plotting.summary_parts import GRAY, MAX_READINGS, set_title, show_sizes, show_values
from stochseg.plotting.volume_summary import plot_volume
from stochseg.types import DatasetInfo, Samples, Spacing

CELL = 2.0  # inches per picture
MAX_LEGEND = 5  # names over the outlines
LEAST_PROBABILITY = 0.01  # of a class with a picture of its own


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
    is not the whole image. Volumes are drawn in three planes through the largest lesion, close up.

    Args:
        image: raw intensities, as a PIL image, an array "h w" or "h w c" or the path of an image file, or a tensor
            "c h w" or "1 c h w" normalized for the model; of a volume, an array "d h w" or "d h w c" or a tensor
            "c d h w" or "1 c d h w".
        samples: what the model drew for the image.
        info: names and colors of the classes, and normalization of tensors; default: `samples.info`.
        spacing: millimeters per pixel (row, column), or (slice, row, column) of a volume; without it, sizes are in
            pixels.
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
    raw = _intensities(image, info, tuple(chosen.labels.shape[1:]))
    if chosen.axes == 3:
        return plot_volume(raw, samples[index], chosen, spacing)
    picture = intensities_to_rgb(raw)
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
    set_title(outlines, f"outlines of {len(chosen.labels)} samples")
    foreground = (1 - samples.mean[index, 0]).cpu().numpy()
    show_values(mean, foreground, 1.0, "viridis", "probability of foreground")
    highest = float(np.log(info.num_classes))
    show_values(entropy, samples.entropy[index].cpu().numpy(), highest, "magma", "entropy (nats)")
    measured = {c: measure(samples, "area", label=c, spacing=spacing, index=index, info=info) for c in labels}
    show_sizes(areas, measured, info)
    cells = (axis for part in middle for axis in bare_axes(part, 1, columns)[0])
    for axis, label in zip(cells, likely, strict=False):
        show_values(axis, samples.mean[index, label].cpu().numpy(), 1.0, "viridis", f"P({class_names(info)[label]})")
    _show_readings(bottom, picture, readings, len(chosen.labels), info, columns)
    return figure


def _likely_classes(samples: Samples, index: int) -> list[int]:
    """Foreground classes whose probability is drawn: none of two classes, else all that are likely anywhere."""
    highest = samples.mean[index].flatten(1).amax(1).tolist()
    return [c for c in range(1, len(highest)) if highest[c] >= LEAST_PROBABILITY] if len(highest) > 2 else []


def _intensities(
    image: Tensor | npt.ArrayLike | Image.Image | str | Path, info: DatasetInfo, size: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Raw intensities "*space" or "*space c" of any accepted image, whose size is checked."""
    axes, space = len(size), "h w" if len(size) == 2 else "d h w"
    if isinstance(image, Tensor):
        flat = image[0] if image.ndim == axes + 2 and len(image) == 1 else image
        if flat.ndim != axes + 1:
            got = tuple(image.shape)
            raise UserError(f'plot: expected an image tensor "c {space}", got shape {got}; pass image[i]')
        raw = info.normalization.inverse(flat.float().cpu()).movedim(0, -1).numpy()
    else:
        raw = read_image(Path(image)) if isinstance(image, (str, Path)) else np.asarray(image)
        if raw.ndim not in (axes, axes + 1):
            raise UserError(f'plot: expected an image "{space}" or "{space} c", got shape {raw.shape}')
    if raw.shape[:axes] != size:
        ours, theirs = (" x ".join(map(str, each)) for each in (raw.shape[:axes], size))
        raise UserError(f"plot: the image is {ours}, the samples are {theirs}; pass the image they were drawn for")
    return raw


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
