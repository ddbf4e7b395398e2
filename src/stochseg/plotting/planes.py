"""Three planes through a point of a volume, close up and to scale: axial, coronal and sagittal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples
from stochseg.analysis.regions import Mask, bounding_box
from stochseg.analysis.separation import lesions
from stochseg.plotting.outlines import draw_window
from stochseg.plotting.pictures import MARGIN, MIN_SIDE, FloatArray
from stochseg.types import DatasetInfo, Example, Spacing, Window

PLANES = ("axial", "coronal", "sagittal")
GAP = 0.12  # inches between two planes
HEAD = 0.22  # inches for the names of the planes
BAR = 0.42  # inches for a color bar
LINE = "#ffd54a"

Draw = Callable[[Axes, int], None]
"""Draws one plane, 0 to 2, into axes."""


@dataclass(frozen=True)
class VolumeView:
    """A part of a volume and a point in it, through which three planes are cut.

    window: the part, one slice per axis; center: the point, voxel of the whole volume; spacing: millimeters per voxel,
    or ones; names: of the planes perpendicular to the axes d, h and w.

    The last slice is on top of the second and third plane, which is the head for axial slices.
    """

    window: tuple[slice, ...]
    center: tuple[int, ...]
    spacing: Spacing = (1.0, 1.0, 1.0)
    names: tuple[str, ...] = PLANES

    def crop(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The window of values "… d h w" of the whole volume."""
        place: tuple[Any, ...] = (..., *self.window)
        return np.asarray(values[place])

    def cut(self, values: npt.NDArray[Any], plane: int) -> npt.NDArray[Any]:
        """One plane "… rows columns" of values "… d h w" of the window."""
        flat: npt.NDArray[Any] = values.take(self.center[plane] - self.window[plane].start, axis=plane - 3)
        return flat if plane == 0 else flat[..., ::-1, :]

    def cut_picture(self, picture: FloatArray, plane: int) -> FloatArray:
        """One plane "rows columns 3" of a picture "d h w 3" of the window."""
        return np.moveaxis(self.cut(np.moveaxis(picture, -1, 0), plane), 0, -1)

    def aspect(self, plane: int) -> float:
        """Height of a pixel of the plane divided by its width."""
        rows, columns = (axis for axis in range(3) if axis != plane)
        return self.spacing[rows] / self.spacing[columns]

    def sides(self, plane: int) -> tuple[float, float]:
        """Height and width of the plane in millimeters, or voxels."""
        lengths = [(side.stop - side.start) * mm for side, mm in zip(self.window, self.spacing, strict=True)]
        rows, columns = (lengths[axis] for axis in range(3) if axis != plane)
        return rows, columns

    def draw_lines(self, axis: Axes, plane: int) -> None:
        """Mark where the two other planes cut this one."""
        down, across = (i for i in range(3) if i != plane)
        first, last = self.window[down].start, self.window[down].stop - 1
        row = self.center[down] - first if plane == 0 else last - self.center[down]
        style: dict[str, Any] = {"color": LINE, "linewidth": 0.6, "alpha": 0.6, "linestyle": (0, (2, 3))}
        axis.axhline(row, **style)
        axis.axvline(self.center[across] - self.window[across].start, **style)

    def draw_window(self, axis: Axes, plane: int, window: Window | None) -> None:
        """Draw a dashed box around the part of the volume that its model labels; nothing if that is all of it."""
        if window is None:
            return
        rows, columns = (
            (window[i][0] - self.window[i].start, window[i][1] - self.window[i].start) for i in range(3) if i != plane
        )
        if plane > 0:
            height = self.window[0].stop - self.window[0].start
            rows = (height - rows[1], height - rows[0])
        draw_window(axis, (rows, columns))


def close_view(
    marked: Mask, center: tuple[int, ...] | None, spacing: Spacing | None, names: tuple[str, ...] = PLANES
) -> VolumeView:
    """View of all that is marked in "d h w", in a cube with a margin; of everything if nothing is marked.

    center: where planes are cut; None: in the middle.
    """
    mm = spacing or (1.0, 1.0, 1.0)
    box = bounding_box(marked) or tuple(slice(0, length) for length in marked.shape)
    extent = max((side.stop - side.start) * each for side, each in zip(box, mm, strict=True))
    cube = max(MIN_SIDE * min(mm), MARGIN * extent)
    window = []
    for side, each, length in zip(box, mm, marked.shape, strict=True):
        wanted = min(length, int(np.ceil(cube / each)))
        start = int(np.clip((side.start + side.stop - wanted) // 2, 0, length - wanted))
        window.append(slice(start, start + wanted))
    middle = tuple((side.start + side.stop - 1) // 2 for side in window)
    return VolumeView(tuple(window), center or middle, mm, names)


def marked_view(maps: Sequence[Tensor], spacing: Spacing | None, names: tuple[str, ...] = PLANES) -> VolumeView:
    """Close view of all that any of the label maps "n d h w" marks, with planes through its largest connected part."""
    marked = np.zeros(maps[0].shape[1:], dtype=bool)
    for labels in (each for part in maps for each in part.numpy()):  # one by one, because volumes are large
        marked |= labels > 0
    view = close_view(marked, None, spacing, names)
    if not marked.any():
        return view
    inside = torch.cat([(part[(slice(None), *view.window)] > 0).to(torch.uint8) for part in maps])
    weights = torch.full((len(inside),), 1 / len(inside), dtype=torch.float64)
    middle = lesions(ImageSamples(inside, weights, DatasetInfo(num_classes=2, image_channels=1)))[0].center
    return replace(view, center=tuple(side.start + at for side, at in zip(view.window, middle, strict=True)))


def sections(example: Example, info: DatasetInfo) -> list[Example]:
    """Cut a volume through the largest connected part of what its raters have marked, or through its middle.

    Args:
        example: a volume with its raters.
        info: the void label.

    Returns:
        Three whole planes as images, each with its own spacing; the second and third are named by the row and the
        column along which they are cut.
    """
    void = -1 if info.ignore is None else info.ignore
    close = marked_view([example.raters.where(example.raters != void, 0)], example.spacing)
    view = replace(close, window=tuple(slice(0, length) for length in example.raters.shape[1:]))
    planes = []
    for plane, id in enumerate((example.id, f"row {view.center[1]}", f"column {view.center[2]}")):
        image, raters = (
            torch.from_numpy(view.cut(maps.numpy(), plane).copy()) for maps in (example.image, example.raters)
        )
        down, across = (mm for axis, mm in enumerate(view.spacing) if axis != plane)
        planes.append(replace(example, image=image, raters=raters, spacing=(down, across), id=id))
    return planes


def plane_figure(view: VolumeView, draw: Draw, width: float, *, named: bool = True, below: float = 0.0) -> Figure:
    """A figure of three planes next to each other, all to one scale.

    draw: fills the axes of a plane; width: of the figure in inches; named: write the names of the planes on top;
    below: inches under the planes.
    """
    sides = [view.sides(plane) for plane in range(3)]
    scale = (width - 2 * GAP) / sum(columns for _, columns in sides)
    scale = min(scale, 1.6 * width / 3 / max(rows for rows, _ in sides))  # tall planes would fill the screen
    tall = max(rows for rows, _ in sides) * scale
    head = HEAD if named else 0.0
    height = tall + head + below
    figure = Figure(figsize=(width, height))
    left = (width - 2 * GAP - sum(columns for _, columns in sides) * scale) / 2
    for plane, (rows, columns) in enumerate(sides):
        bottom = below + tall - rows * scale
        box = (left / width, bottom / height, columns * scale / width, rows * scale / height)
        axis = figure.add_axes(box)
        axis.set_axis_off()
        draw(axis, plane)
        axis.set_aspect("auto")  # the box is to scale
        if named:
            axis.set_title(view.names[plane], fontsize=9, pad=3)
        left += columns * scale + GAP
    return figure


def plane_maps(view: VolumeView, values: FloatArray, highest: float, colors: str, unit: str, width: float) -> Figure:
    """Three planes of values "d h w" from 0 to `highest` as colors, with a color bar below."""

    def draw(axis: Axes, plane: int) -> None:
        axis.imshow(view.cut(values, plane), cmap=colors, vmin=0, vmax=highest, interpolation="nearest")

    figure = plane_figure(view, draw, width, below=BAR)
    tall = figure.get_size_inches()[1]
    bar = figure.add_axes((0.3, 0.7 * BAR / tall, 0.36, 0.16 * BAR / tall))
    drawn = figure.colorbar(figure.axes[0].images[0], cax=bar, orientation="horizontal", ticks=MaxNLocator(5))
    drawn.ax.tick_params(labelsize=8.5, length=2, pad=1.5)
    drawn.outline.set_visible(False)
    figure.text(0.68, 0.78 * BAR / tall, unit, fontsize=8.5, va="center")
    return figure
