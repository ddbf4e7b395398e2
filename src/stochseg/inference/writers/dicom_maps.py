"""Probabilities as fractional DICOM Segmentation and entropy as DICOM parametric map, on the slices of their input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.extras import require
from stochseg.inference.writers.base import Prediction
from stochseg.inference.writers.dicom_seg import class_segments, derived_object, segmentation


def write_fractional_seg(prediction: Prediction, file: Path) -> None:
    """Write the mean probabilities of all classes except the first, in steps of 1/255."""
    result = prediction.result
    soft = np.moveaxis(result.mean[:, 1:], 1, -1).clip(0, 1)
    segments, num_samples = class_segments(prediction.info), result.labels.shape[1]
    segmentation(soft, prediction.stack.headers, segments, num_samples, prediction.model).save_as(file)


def write_entropy_map(prediction: Prediction, file: Path) -> None:
    """Write the entropy in nats as floats."""
    entropy_map(prediction).save_as(file)


def entropy_map(prediction: Prediction) -> Any:
    """Build the parametric map of the entropy."""
    highdicom = require("highdicom", "medical", "writing DICOM")
    most = math.log(prediction.info.num_classes)
    mapping = highdicom.pm.RealWorldValueMapping(
        lut_label="entropy",
        lut_explanation="entropy of the class in nats",
        unit=highdicom.sr.CodedConcept("1", "UCUM", "no units"),
        value_range=(0.0, most),
        slope=1,
        intercept=0,
    )
    return derived_object(
        highdicom.pm.ParametricMap,
        prediction.stack.headers,
        np.ascontiguousarray(prediction.result.entropy, np.float32),
        prediction.model,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[mapping],
        window_center=most / 2,
        window_width=most,
        content_label="ENTROPY",
        content_description=f"entropy of {prediction.result.labels.shape[1]} samples",
    )
