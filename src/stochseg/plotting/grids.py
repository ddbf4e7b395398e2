"""Grids of pictures: qualitative results, comparisons of methods, all samples of an image, data, forward process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from stochseg.core import CategoricalProcess, SeededNoise
from stochseg.plotting.outlines import PAGE, add_legend, class_legend, draw_outline, draw_window, fit_axes, rater_colors
from stochseg.plotting.pictures import FloatArray, image_to_rgb, labels_to_rgb, mean_to_rgb
from stochseg.plotting.planes import sections
from stochseg.plotting.slices import as_images, disputed_slice, slice_of_example, slice_of_samples
from stochseg.types import DatasetInfo, Example, Samples

CELL = 1.15  # inches per picture
RATERS = 6  # in one row of pictures
HEAD = 9.0  # points of the column heads after that
MAX_HEAD = 15.0  # points that fit over a picture

AxesGrid = npt.NDArray[Any]
"""Axes "rows columns"."""


def qualitative(rows: Sequence[tuple[Example, Samples]], info: DatasetInfo, *, max_samples: int = 6) -> Figure:
    """Draw one row per image: image, raters, mean and entropy of all samples, then some samples (cf. CCDM Fig. 3).

    Images of more than `RATERS` raters take several rows. Of a volume, the slice on which its samples disagree most is
    drawn.

    Args:
        rows: examples, each with samples of its image.
        info: names and colors of the classes, and normalization of the images.
        max_samples: samples per row.

    Returns:
        The figure.

    Example:
        >>> from stochseg import create
        >>> from stochseg.data import Phantoms
        >>> data = Phantoms("val", size=16, count=2)
        >>> model = create("unet-ce", base=8, multipliers=[1], draw="pixels")
        >>> figure = qualitative([(data[i], model.sample(data[i].image[None], 3)) for i in range(2)], data.info)
        >>> len(figure.axes)  # two rows of image, four raters, mean, entropy and three samples
        20
    """
    rows = as_images(rows)
    raters = min(RATERS, max(len(example.raters) for example, _ in rows))
    samples = min(max_samples, *(out.labels.shape[1] for _, out in rows))
    lines = [-(-len(example.raters) // raters) for example, _ in rows]
    names = [rater_names(example) for example, _ in rows]
    common = max(names, key=len)  # heads of all rows, if they fit all
    alike = max(lines) == 1 and all(common[: len(each)] == each for each in names)
    heads = ["image", *[""] * raters, "mean", "entropy", *(f"sample {i + 1}" for i in range(samples))]
    figure, axes = _grid(sum(lines), len(heads), rows[0][0].image.shape[-2:])
    _add_heads(axes[0], heads)
    if alike:
        _add_heads(axes[0, 1:], common)
    for (example, out), own, block in zip(rows, names, np.split(axes, np.cumsum(lines)[:-1]), strict=True):
        first, cells = block[0], block[:, 1 : 1 + raters].flatten()
        _show(first[0], image_to_rgb(example.image, info.normalization))
        _show_labels(cells, example.raters, info)
        if not alike:
            _add_heads(cells, own)
        _show(first[1 + raters], mean_to_rgb(out.mean[0], info))
        show_entropy(first[2 + raters], out.entropy[0], info)
        _show_labels(first[3 + raters :], out.labels[0], info)
    _add_class_legend(figure, info)
    return figure


def comparison_grid(example: Example, samples: Mapping[str, Samples], info: DatasetInfo, *, columns: int = 8) -> Figure:
    """Draw the image and its raters in the first rows, then one row per method with mean and samples.

    Of a volume, the slice on which the raters disagree most is drawn.

    Args:
        example: the image with its raters.
        samples: of the image, by the name of the method.
        info: names and colors of the classes, and normalization of the images.
        columns: samples per row.

    Returns:
        The figure.
    """
    if example.image.ndim == 4:
        index = disputed_slice(example.raters)
        example = slice_of_example(example, index)
        samples = {name: slice_of_samples(out, index) for name, out in samples.items()}
    names = {name: textwrap.fill(name, 24) for name in samples}
    widest = max(len(line) for name in names.values() for line in name.splitlines())
    name_width = max(1.0, 0.09 * widest / CELL)  # in cells
    lines = -(-len(example.raters) // columns)
    figure, axes = _grid(lines + len(samples), 2 + columns, example.image.shape[-2:], first=name_width)
    _add_heads(axes[0], ["", "image"])
    _add_heads(axes[lines], ["", "mean", *(f"sample {i + 1}" for i in range(columns))])
    _show(axes[0, 1], image_to_rgb(example.image, info.normalization))
    cells = axes[:lines, 2:].flatten()
    _add_heads(cells, rater_names(example))
    _show_labels(cells, example.raters, info)
    for line, (name, out) in zip(axes[lines:], samples.items(), strict=True):
        line[0].text(0.5, 0.5, names[name], ha="center", va="center", fontsize=_head_size(line[0]))
        _show(line[1], mean_to_rgb(out.mean[0], info))
        _show_labels(line[2:], out.labels[0], info)
    _add_class_legend(figure, info)
    return figure


def overview(image: Tensor, out: Samples, info: DatasetInfo, *, columns: int = 8) -> Figure:
    """Draw an image with mean, entropy and fused map, the probability of each of several classes, and all samples.

    Of a volume, the slice on which the samples disagree most is drawn.

    Args:
        image: "c h w", normalized, or "c d h w" of a volume.
        out: its samples.
        info: names and colors of the classes, and normalization of the images.
        columns: pictures per row.

    Returns:
        The figure.
    """
    if image.ndim == 4:
        index = disputed_slice(out.labels[0].cpu())
        image, out = image[:, index], slice_of_samples(out, index)
    n, maps = out.labels.shape[1], info.num_classes - 1 if info.num_classes > 2 else 0
    lines = -(-maps // columns)
    figure, axes = _grid(1 + lines + -(-n // columns), columns, image.shape[-2:])
    _add_heads(axes[0], ["image", "mean", "entropy", "fused"])
    _show(axes[0, 0], image_to_rgb(image, info.normalization))
    _show(axes[0, 1], mean_to_rgb(out.mean[0], info))
    show_entropy(axes[0, 2], out.entropy[0], info)
    _show_labels(axes[0, 3:], out.fused(), info)
    draw_window(axes[0, 0], out.window)
    for axis, label in zip(axes[1 : 1 + lines].flat, range(1, 1 + maps), strict=False):
        axis.imshow(out.mean[0, label].cpu().numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        _add_heads([axis], [f"P({info.names[label]})"])
    _add_heads(axes[1 + lines :].flat, [f"sample {i}" for i in range(n)])
    _show_labels(axes[1 + lines :].flat, out.labels[0], info)
    _add_class_legend(figure, info)
    return figure


def contact_sheet(examples: Sequence[Example], info: DatasetInfo, *, columns: int = 6) -> Figure:
    """Draw images with the outlines of every rater, and a legend. Of a volume, three planes are drawn to scale.

    There is one color per rater, or per class if no image has more than one rater.

    Args:
        examples: the images or volumes with their raters.
        info: names and colors of the classes, and normalization of the images.
        columns: images per row.

    Returns:
        The figure.
    """
    if info.spatial_dims == 3:
        examples = [plane for example in examples for plane in sections(example, info)]
    rows = -(-len(examples) // columns)
    figure = Figure(figsize=(1.9 * columns, 2.1 * rows + 0.4), layout="constrained")
    axes = bare_axes(figure, rows, columns)
    raters = list(dict.fromkeys(name for example in examples for name in rater_names(example)))
    colors = dict(zip(raters, rater_colors(len(raters)), strict=True))
    by_class = max(len(example.raters) for example in examples) == 1
    for axis, example in zip(axes.flat, examples, strict=False):
        _show(axis, image_to_rgb(example.image, info.normalization))
        name = example.id if len(example.id) <= 17 else f"…{example.id[-16:]}"
        axis.set_title(f"{name}  k={len(example.raters)}", fontsize=_head_size(axis), pad=2)
        for rater, labels in zip(rater_names(example), example.raters.numpy(), strict=True):
            for label in range(1, info.num_classes):
                color = info.colors[label] if by_class else colors[rater]
                draw_outline(axis, labels == label, color, linewidths=0.9)
        fit_axes(axis, example.image.shape[-2:])
        if info.spatial_dims == 3 and example.spacing is not None:
            axis.set_aspect(example.spacing[0] / example.spacing[1])
    add_legend(figure, class_legend(info) if by_class else list(colors.items()))
    return figure


def rater_names(example: Example) -> tuple[str, ...]:
    """Names of the raters, "rater 1", "rater 2" … if they are unknown."""
    return example.rater_names or tuple(f"rater {i + 1}" for i in range(len(example.raters)))


def forward_process(
    process: CategoricalProcess, labels: Tensor, info: DatasetInfo, *, columns: int = 8, seed: int = 0
) -> Figure:
    """Draw a label map under the forward process at evenly spaced t (the strip of CCDM's supplement).

    Args:
        process: the forward process.
        labels: "h w" int64.
        info: colors of the classes, and normalization of the images.
        columns: number of times t, from 0 to T.
        seed: of the noise.

    Returns:
        The figure.
    """
    times = torch.linspace(0, process.num_timesteps, columns).round().long()
    noised = [process.q_sample(labels[None], t[None], SeededNoise([(seed,)]))[0] for t in times]
    return label_strip({f"t = {t}": maps for t, maps in zip(times.tolist(), noised, strict=True)}, info)


def label_strip(maps: Mapping[str, Tensor], info: DatasetInfo) -> Figure:
    """Draw label maps in a row.

    Args:
        maps: "h w" int64, by title.
        info: colors of the classes.

    Returns:
        The figure.
    """
    stacked = torch.stack(list(maps.values()))
    figure, axes = _grid(1, len(maps), stacked.shape[1:])
    _add_heads(axes[0], list(maps))
    _show_labels(axes[0], stacked, info)
    return figure


def bare_axes(figure: FigureBase, rows: int, columns: int, **options: Any) -> AxesGrid:
    """Add axes without frames and ticks to a figure."""
    axes: AxesGrid = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.set_axis_off()
    return axes


def show_entropy(axis: Axes, entropy: Tensor, info: DatasetInfo) -> None:
    """Show entropies "h w" in nats, from 0 to that of a uniform distribution."""
    highest = float(np.log(info.num_classes))
    axis.imshow(entropy.cpu().numpy(), cmap="magma", vmin=0, vmax=highest, interpolation="nearest")


def _grid(rows: int, columns: int, size: Sequence[int], first: float = 1.0) -> tuple[Figure, AxesGrid]:
    """Axes without frames for pictures of one size (h, w); first: relative width of the first column."""
    layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.03, wspace=0.02, hspace=0.02)
    width = CELL * (columns - 1 + first)
    figure = Figure(figsize=(width, CELL * rows * size[0] / size[1] + 0.3), layout=layout)
    return figure, bare_axes(figure, rows, columns, width_ratios=[first, *[1.0] * (columns - 1)])


def _head_size(axis: Axes) -> float:
    """Points of a text that has `HEAD` points when the figure is reduced to the width of a page."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    return min(MAX_HEAD, HEAD * max(1.0, float(figure.get_size_inches()[0]) / PAGE))


def _add_heads(axes: Iterable[Axes], heads: Sequence[str]) -> None:
    for axis, head in zip(axes, heads, strict=False):
        axis.set_title(textwrap.fill(head, 14), fontsize=_head_size(axis), pad=3)


def _add_class_legend(figure: Figure, info: DatasetInfo) -> None:
    """Name the colors of the classes below the figure, if there are several besides the background."""
    if info.num_classes > 2:
        add_legend(figure, class_legend(info))


def _show(axis: Axes, picture: FloatArray) -> None:
    axis.imshow(picture, interpolation="nearest")


def _show_labels(axes: Iterable[Axes], maps: Tensor, info: DatasetInfo) -> None:
    """Show label maps "n h w", one per axes, until either runs out."""
    for axis, labels in zip(axes, maps, strict=False):
        _show(axis, labels_to_rgb(labels, info))
