"""Measure every sample of an image: area, diameters, perimeter, components, volume, or a user's function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import SupportsFloat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, select_image
from stochseg.analysis.measurement import Measurement, Measurements
from stochseg.analysis.regions import Mask, area, components, equivalent_diameter, longest_diameter, perimeter
from stochseg.errors import UserError, unknown_name
from stochseg.types import DatasetInfo, Samples

Measure = Callable[[npt.NDArray[np.int64]], SupportsFloat]
"""A user's measure: a function from a label map "h w" to a number."""


MEASURES: dict[str, tuple[Callable[[Mask, tuple[float, float]], float], str]] = {
    "area": (area, "{}²"),
    "equivalent diameter": (equivalent_diameter, "{}"),
    "longest diameter": (longest_diameter, "{}"),
    "perimeter": (perimeter, "{}"),
    "components": (components, ""),
}
"""Functions of a region and its pixel spacing, with the unit of their result, where {} is mm or px."""
VOLUME = "volume"


def measure(
    samples: Samples | Tensor,
    what: str | Measure = "area",
    *,
    label: int | str | None = None,
    spacing: Sequence[float] | None = None,
    index: int | None = None,
    info: DatasetInfo | None = None,
    name: str | None = None,
) -> Measurement:
    """Measure every sample of one image.

    "volume" treats the images of the samples as the slices of one series, in order, and takes spacing (slice, row,
    column). Sample i of every slice forms volume i. Slices that were drawn independently average out, so the spread
    is too small for a series whose slices are right or wrong together.

    Args:
        samples: `Samples`, or label maps "n h w", such as the raters of an image.
        what: "area", "equivalent diameter", "longest diameter", "perimeter", "components", "volume", or a function
            that maps a label map "h w" (numpy) to a number.
        label: the class, by number or by name; None measures all foreground.
        spacing: millimeters per pixel (row, column); without it, the unit is the pixel.
        index: the image, required if the samples are of several images.
        info: names of the classes; default: `samples.info`.
        name: name of the measurement; default: the measure and the class.

    Returns:
        One value per sample, with mean, quantiles, intervals and probabilities.

    Raises:
        UserError: for unknown measures and classes, and for options that do not fit the samples.

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
    if what == VOLUME:
        if not isinstance(samples, Samples) or index is not None:
            raise UserError('measure "volume": expected Samples "b n h w" and no index; stack the slices along b')
        slices = [select_image(samples, z, info) for z in range(len(samples.labels))]
        return _volume(slices, label, spacing, name)
    if not callable(what) and what not in MEASURES:
        raise unknown_name("measure", what, [*MEASURES, VOLUME])
    image = select_image(samples, index, info)
    if callable(what):
        if label is not None or spacing is not None:
            raise UserError(
                "measure: label and spacing apply to named measures only, a function receives the whole label map; "
                "use them inside the function"
            )
        title = name or str(getattr(what, "__name__", "measure"))
        values = np.array([float(what(labels)) for labels in image.labels.numpy()])
        for i in np.flatnonzero(~np.isfinite(values)):
            raise UserError(f"{title}: sample {i} measures {values[i]}; return a finite number, also for an empty map")
        return Measurement(title, values, image.weights.numpy())
    mm = _check_spacing(spacing, ("row", "column"))
    (function, unit), pixel = MEASURES[what], (mm[0], mm[1]) if mm else (1.0, 1.0)
    values = np.array([function(region, pixel) for region in _regions(image, label)])
    title = name or f"{what} of {image.label_name(label)}"
    return Measurement(title, values, image.weights.numpy(), unit.format("mm" if mm else "px"))


def measurements(
    samples: Samples | Tensor,
    *,
    spacing: Sequence[float] | None = None,
    index: int | None = None,
    info: DatasetInfo | None = None,
) -> Measurements:
    """Apply every named measure to every foreground class of one image.

    Args:
        samples: `Samples`, or label maps "n h w".
        spacing: millimeters per pixel (row, column); without it, the unit is the pixel.
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
    num_classes = select_image(samples, index, info).info.num_classes
    return Measurements(
        measure(samples, what, label=label, spacing=spacing, index=index, info=info)
        for label in range(1, num_classes)
        for what in MEASURES
    )


def _volume(
    slices: Sequence[ImageSamples], label: int | str | None, spacing: Sequence[float] | None, name: str | None
) -> Measurement:
    weights = slices[0].weights
    if any(not torch.allclose(image.weights, weights, atol=1e-6) for image in slices):
        raise UserError('measure "volume": sample i needs the same weight in every slice; draw samples of equal weight')
    mm = _check_spacing(spacing, ("slice", "row", "column"))
    voxel = math.prod(mm) if mm else 1.0
    values = sum(_regions(image, label).sum((1, 2)) * voxel for image in slices)
    title = name or f"volume of {slices[0].label_name(label)}"
    return Measurement(title, np.asarray(values, dtype=np.float64), weights.numpy(), "mm³" if mm else "px³")


def _regions(image: ImageSamples, label: int | str | None) -> Mask:
    """Pixels of the class in each sample, "n h w" bool."""
    labels = image.labels.numpy()
    number = image.label_number(label)
    return labels > 0 if number is None else labels == number


def _check_spacing(spacing: Sequence[float] | None, axes: tuple[str, ...]) -> tuple[float, ...] | None:
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
