"""Measure every sample of an image or volume: size, diameters, border, components, or a user's function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsFloat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stochseg.analysis import regions
from stochseg.analysis.image_samples import ImageSamples, class_names, select_image
from stochseg.analysis.measurement import Measurement, Measurements
from stochseg.analysis.regions import Mask
from stochseg.errors import UserError, unknown_name
from stochseg.models.calibration import Calibration
from stochseg.types import RATIO, DatasetInfo, Samples, Spacing

Measure = Callable[[npt.NDArray[np.int64]], SupportsFloat]
"""A user's measure: a function from a label map "*space" to a number."""


class NamedMeasure(NamedTuple):
    """A function of a region and its spacing; the unit of its result, where {} is mm or px; axes of such a region."""

    function: Callable[[Mask, Spacing], float]
    unit: str
    axes: tuple[int, ...] = (2, 3)


MEASURES = {
    "area": NamedMeasure(regions.size, "{}²", (2,)),
    "volume": NamedMeasure(regions.size, "{}³", (3,)),
    "equivalent diameter": NamedMeasure(regions.equivalent_diameter, "{}"),
    "longest diameter": NamedMeasure(regions.longest_diameter, "{}"),
    "longest diameter in plane": NamedMeasure(regions.longest_diameter_in_plane, "{}", (3,)),
    "perimeter": NamedMeasure(regions.perimeter, "{}", (2,)),
    "surface area": NamedMeasure(regions.surface_area, "{}²", (3,)),
    "components": NamedMeasure(regions.components, ""),
}
"""All named measures, of images (two axes), volumes (three axes) or both."""
RATIOS = {
    "vertical": NamedMeasure(regions.vertical_extent, "", (2,)),
    "horizontal": NamedMeasure(regions.horizontal_extent, "", (2,)),
}
"""Measures of two classes, "vertical PART/WHOLE ratio": what is measured of both, and divided."""
VOLUME = "volume"
AXES = ("slice", "row", "column")


def measure_names(axes: int) -> list[str]:
    """Names of the measures of images (2) or volumes (3); the first is the size."""
    return [name for name, each in MEASURES.items() if axes in each.axes]


def measure(
    samples: Samples | Tensor | ImageSamples,
    what: str | Measure | None = None,
    *,
    label: int | str | None = None,
    spacing: Sequence[float] | None = None,
    index: int | None = None,
    info: DatasetInfo | None = None,
    name: str | None = None,
    calibration: Calibration | None = None,
) -> Measurement:
    """Measure every sample of one image or volume.

    Images have an area, an equivalent diameter, a longest diameter, a perimeter and components. Volumes have a volume,
    an equivalent diameter, a longest diameter (in space), a longest diameter in plane (the largest of all slices), a
    surface area and components.

    Images of several classes also have ratios such as "vertical cup/disc ratio": the height of the class cup divided by
    the height of cup and disc together, because the label map of a disc has a hole where its cup is. It is undefined,
    NaN, in a sample without both.

    Images, too, have a "volume", if they are the slices of one series, in order: pass samples "b n h w" and spacing
    (slice, row, column). Sample i of every slice forms volume i. Slices that were drawn independently average out, so
    the spread is too small for a series whose slices are right or wrong together.

    Args:
        samples: `Samples`, or label maps "n h w" or "n d h w", such as the raters of an image.
        what: the name of a measure or ratio, or a function that maps a label map "*space" (numpy) to a number. Default:
            the area of an image, the volume of a volume.
        label: the class, by number or by name; None measures all foreground.
        spacing: millimeters per pixel (row, column), or (slice, row, column) of a volume; without it, the unit is the
            pixel.
        index: the image, required if the samples are of several images.
        info: names of the classes; default: `samples.info`.
        name: name of the measurement; default: the measure and the class.
        calibration: of the model that drew the samples (`model.calibration`), for `calibrated_interval`.

    Returns:
        One value per sample, with mean, quantiles, intervals and probabilities.

    Raises:
        UserError: for unknown measures and classes, for options that do not fit the samples, and for a calibration of
            another number of samples.

    >>> import torch
    >>> import stochseg
    >>> maps = torch.zeros(4, 8, 8, dtype=torch.long)
    >>> maps[1:, 2:5, 2:6] = 1  # three of four samples mark 3 x 4 pixels
    >>> area = stochseg.measure(maps, "area", spacing=(0.5, 0.5))
    >>> area
    area of foreground: 2.25 mm², std 1.3, 90% 0 to 3 mm² (4 samples)
    >>> area.probability(">", 2)
    0.75
    >>> stochseg.measure(maps, lambda labels: labels.any(axis=1).sum(), name="rows").values.tolist()
    [0.0, 3.0, 3.0, 3.0]
    """
    if what == VOLUME and isinstance(samples, Samples) and samples.labels.ndim == 4:
        if index is not None:
            raise UserError('measure "volume" of images: expected samples of all slices and no index')
        slices = [select_image(samples, z, info) for z in range(len(samples.labels))]
        return _series_volume(slices, label, spacing, name)
    image = select_image(samples, index, info)
    if callable(what):
        if label is not None or spacing is not None:
            raise UserError(
                "measure: label and spacing apply to named measures only, a function receives the whole label map; "
                "use them inside the function"
            )
        title = name or str(getattr(what, "__name__", "measure"))
        values = np.array([float(what(labels.astype(np.int64, copy=False))) for labels in image.labels.numpy()])
        for i in np.flatnonzero(~np.isfinite(values)):
            raise UserError(f"{title}: sample {i} measures {values[i]}; return a finite number, also for an empty map")
        return Measurement(title, values, image.weights.numpy())
    what = what or measure_names(image.axes)[0]
    ratio = RATIO.fullmatch(what)
    _check_measure(what, image.axes)
    offsets = {} if calibration is None else _offsets(calibration, what, label, image)
    mm = _check_spacing(spacing, AXES[-image.axes :])
    if ratio is not None:
        if label is not None:
            raise UserError(f"measure {what!r}: the classes are in its name, got also label {label!r}; omit it")
        values = _apply_ratio(ratio, image, mm or (1.0, 1.0))
        return Measurement(name or what, values, image.weights.numpy(), offsets=offsets)
    values = _apply(MEASURES[what].function, image, label, mm or (1.0,) * image.axes)
    title = name or f"{what} of {image.label_name(label)}"
    return Measurement(title, values, image.weights.numpy(), MEASURES[what].unit.format("mm" if mm else "px"), offsets)


def measure_keys(info: DatasetInfo) -> list[tuple[str, int | None]]:
    """All named measures of all classes as (measure, class); of more than two classes also of all foreground (None).

    Measures of several classes, which data of images may name, have no class of their own (None).
    """
    whole: list[int | None] = [None] if info.num_classes > 2 else []
    several: tuple[str, ...] = info.measures if info.spatial_dims == 2 else ()
    names = measure_names(info.spatial_dims)
    keys = [(what, label) for label in [*range(1, info.num_classes), *whole] for what in names]
    return keys + [(what, None) for what in several]


def measure_title(what: str, label: int | None, info: DatasetInfo) -> str:
    """Name of a measure of a class: "area of nodule"."""
    if what not in MEASURES:
        return what
    return f"{what} of {'foreground' if label is None else class_names(info)[label]}"


def _offsets(calibration: Calibration, what: str, label: int | str | None, image: ImageSamples) -> dict[float, float]:
    """Offsets of a measurement by confidence, those that are finite."""
    n = len(image.labels)
    if n != calibration.sampling.n:
        raise UserError(
            f"calibration: fitted for intervals of {calibration.sampling.n} samples, got {n}; draw as many, or "
            "calibrate again"
        )
    number = image.label_number(label)
    number = 1 if number is None and image.info.num_classes == 2 else number
    own = (each for each in calibration.intervals if (each.measure, each.label) == (what, number))
    return {each.confidence: each.offset for each in own if each.offset is not None}


def _check_measure(what: str, axes: int) -> None:
    """Raise a UserError for a measure that is unknown or does not apply to images of so many axes."""
    if RATIO.fullmatch(what):
        if axes != 2:
            raise UserError(f"measure {what!r}: ratios are of images; a volume has none")
        return
    if what not in MEASURES:
        raise unknown_name("measure", what, [*MEASURES, *(f"{kind} PART/WHOLE ratio" for kind in RATIOS)])
    if axes not in MEASURES[what].axes:
        kind = "an image" if axes == 2 else "a volume"
        remedy = '; for a series of images, stack the slices along b, as Samples "b n h w"' if what == VOLUME else ""
        raise UserError(f"measure {what!r}: {kind} has none, only {', '.join(measure_names(axes))}{remedy}")


def _apply(
    function: Callable[[Mask, Spacing], float], image: ImageSamples, label: int | str | None, spacing: Spacing
) -> npt.NDArray[np.float64]:
    """Measure the class in each sample, "n"; only the part of the image where a sample has it is read."""
    number = image.label_number(label)
    values = []
    for labels in image.labels.numpy():  # one by one, because volumes are large
        region = labels > 0 if number is None else labels == number
        box = regions.bounding_box(region)
        values.append(0.0 if box is None else function(region[box], spacing))
    return np.array(values)


def _apply_ratio(ratio: re.Match[str], image: ImageSamples, spacing: Spacing) -> npt.NDArray[np.float64]:
    """The extent of one class, divided by that of it and another together, in each sample; NaN without both."""
    part, whole = (image.label_number(ratio[key].strip()) for key in ("part", "whole"))
    if part == whole:
        raise UserError(f"measure {ratio[0]!r}: expected two classes, got one")
    extent, values = RATIOS[ratio["kind"]].function, []
    for labels in image.labels.numpy():
        marked = labels == part
        both = extent(marked | (labels == whole), spacing)
        values.append(extent(marked, spacing) / both if both > 0 else math.nan)
    return np.array(values)


def measurements(
    samples: Samples | Tensor | ImageSamples,
    *,
    spacing: Sequence[float] | None = None,
    index: int | None = None,
    info: DatasetInfo | None = None,
) -> Measurements:
    """Apply every named measure to every foreground class of one image or volume, and the ratios of `info.measures`.

    Args:
        samples: `Samples`, or label maps "n h w" or "n d h w".
        spacing: millimeters per pixel (row, column), or (slice, row, column) of a volume; without it, the unit is the
            pixel.
        index: the image, required if the samples are of several images.
        info: names of the classes; default: `samples.info`.

    Returns:
        A list of measurements, shown as a table in notebooks.

    >>> import torch
    >>> import stochseg
    >>> for measured in stochseg.measurements(torch.ones(2, 3, 4, dtype=torch.long)):
    ...     print(f"{measured.name}: {measured.mean:.4g}")
    area of foreground: 12
    equivalent diameter of foreground: 3.909
    longest diameter of foreground: 5
    perimeter of foreground: 12.16
    components of foreground: 1
    """
    image = select_image(samples, index, info)
    keys: list[tuple[str, int | None]] = [
        (what, label) for label in range(1, image.info.num_classes) for what in measure_names(image.axes)
    ]
    keys += [(what, None) for what in image.info.measures if image.axes == 2]
    return Measurements(measure(image, what, label=label, spacing=spacing) for what, label in keys)


def _series_volume(
    slices: Sequence[ImageSamples], label: int | str | None, spacing: Sequence[float] | None, name: str | None
) -> Measurement:
    weights = slices[0].weights
    if any(not torch.allclose(image.weights, weights, atol=1e-6) for image in slices):
        raise UserError('measure "volume": sample i needs the same weight in every slice; draw samples of equal weight')
    mm = _check_spacing(spacing, AXES)
    voxel = mm or (1.0, 1.0, 1.0)
    values = np.sum([_apply(regions.size, image, label, voxel[1:]) * voxel[0] for image in slices], axis=0)
    title = name or f"volume of {slices[0].label_name(label)}"
    return Measurement(title, values, weights.numpy(), "mm³" if mm else "px³")


def _check_spacing(spacing: Sequence[float] | None, axes: tuple[str, ...]) -> Spacing | None:
    if spacing is None:
        return None
    try:
        mm = tuple(float(s) for s in spacing)
    except (TypeError, ValueError):
        mm = ()
    if len(mm) != len(axes) or not all(math.isfinite(s) and s > 0 for s in mm):
        raise UserError(
            f"spacing: expected {len(axes)} positive numbers, millimeters ({', '.join(axes)}), got {spacing!r}"
        )
    return mm
