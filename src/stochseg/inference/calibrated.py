"""What the calibration of a model adds to a prediction: intervals, margins of outlines, scaled probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stochseg.analysis import calibrated_interval, margin_map, measure
from stochseg.analysis.image_samples import ImageSamples
from stochseg.inference.result import StackResult
from stochseg.models import Calibration, StochasticSegmenter
from stochseg.models.sampling import SamplingOptions

if TYPE_CHECKING:
    from stochseg.inference.writers.base import Prediction


def usable_calibration(model: StochasticSegmenter, options: SamplingOptions) -> tuple[Calibration | None, str]:
    """The calibration of a model if it was fitted for these options of sampling, else why it is not used.

    Returns:
        The calibration and ""; None and a notice for the user, "" if the model is not calibrated.
    """
    calibration = model.calibration
    if calibration is None:
        return None, ""
    own = SamplingOptions(**options.model_dump(include=set(SamplingOptions.model_fields)))
    difference = calibration.difference(own.or_default(model.default_sampling()))
    if not difference:
        return calibration, ""
    return None, (
        f"without calibrated intervals: {difference}. They hold for samples drawn in the same way; sample with the "
        "options of the calibration, or calibrate the model with these"
    )


def fits_axes(prediction: Prediction) -> bool:
    """Whether the input is one case of its model: a volume of a model of images is several, which is another matter."""
    return prediction.info.spatial_dims == 3 or len(prediction.stack.values) == 1


def describe_intervals(prediction: Prediction) -> list[dict[str, Any]]:
    """Measure a prediction where its model is calibrated, as JSON values; null where there is no value or interval.

    The intervals are in millimeters if the geometry of the input is known, otherwise in pixels.
    """
    calibration, lattice = prediction.calibration, prediction.stack.lattice
    if calibration is None or not fits_axes(prediction):
        return []
    image = _image_samples(prediction)
    spacing = None if lattice is None else lattice.spacing[-image.axes :]
    found = []
    for each in calibration.intervals:
        measured = measure(image, each.measure, label=each.label, spacing=spacing, calibration=calibration)
        ends = calibrated_interval(measured, each.confidence)
        found.append(
            {
                "measure": each.measure,
                "class": each.label,
                "name": measured.name,
                "unit": measured.unit,
                "confidence": each.confidence,
                "mean": _short(measured.mean),
                "samples": _ends(measured.interval(each.confidence)),
                "calibrated": _ends(ends),
            }
        )
    return found


def _short(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


def _ends(interval: tuple[float, float] | None) -> list[float | None] | None:
    """The ends of an interval; None if there is none, as where no sample has a value."""
    return None if interval is None or math.isnan(interval[0]) else [_short(end) for end in interval]


def _image_samples(prediction: Prediction) -> ImageSamples:
    """The samples of the only slice, "n h w", or of the volume, "n d h w"."""
    result = prediction.result
    flat = prediction.info.spatial_dims == 2
    labels = result.labels[0] if flat else result.labels.swapaxes(0, 1)
    kind = np.uint8 if prediction.info.num_classes <= 256 else np.int64
    weights = torch.from_numpy(result.weights[0]).double()
    return ImageSamples(torch.from_numpy(np.ascontiguousarray(labels, kind)), weights / weights.sum(), prediction.info)


def margins_of(prediction: Prediction) -> dict[int, npt.NDArray[np.uint8]]:
    """Margin maps "s h w" by class, at the main confidence; none without a finite depth."""
    calibration, lattice = prediction.calibration, prediction.stack.lattice
    if calibration is None or not fits_axes(prediction):
        return {}
    found = {}
    for label in range(1, prediction.info.num_classes):
        margin = calibration.margin(label, calibration.main_confidence)
        if margin is None or margin.offset is None:
            continue
        mean, spacing = prediction.result.mean[:, label], None if lattice is None else lattice.spacing
        if len(mean) == 1 and prediction.info.spatial_dims == 2:
            found[label] = margin_map(mean[0], margin.offset, None if spacing is None else spacing[1:])[None]
        else:
            found[label] = margin_map(mean, margin.offset, spacing)
    return found


def scaled_result(prediction: Prediction) -> StackResult:
    """The result with scaled mean probabilities."""
    result, calibration = prediction.result, prediction.calibration
    if calibration is None:
        return result
    return replace(result, mean=calibration.scaled(torch.from_numpy(result.mean)).numpy())
