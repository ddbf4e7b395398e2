"""Sizes of the classes in the fused map and in every sample, as result.json lists them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.inference.writers.base import Prediction


def measure_sizes(prediction: Prediction) -> dict[str, Any]:
    """Measure the classes of a prediction: areas for a single slice, volumes for more, pixels for a picture.

    Returns:
        JSON values: "image" with the size and the geometry, "unit", "classes" with the size of each class in the fused
        map and in every sample, and "weights" of the samples unless they are equal.
    """
    result, info, lattice = prediction.result, prediction.info, prediction.stack.lattice
    s, n, height, width = result.labels.shape
    unit, size = "pixels", 1.0
    if lattice is not None:
        unit, size = ("mm2", lattice.spacing[1] * lattice.spacing[2]) if s == 1 else ("mm3", lattice.voxel)
    counts = _count_labels(prediction)
    fused = np.bincount(result.fused.ravel(), minlength=info.num_classes)
    return {
        "image": {
            "slices": s,
            "height": height,
            "width": width,
            "spacing_mm": None if lattice is None else [_nine_digits(v) for v in lattice.spacing],
            "affine": None if lattice is None else np.round(lattice.affine, 9).tolist(),
            "slice_axis": None if lattice is None else lattice.axis,
        },
        "unit": unit,
        "classes": [
            {
                "label": label,
                "name": name,
                "color": info.colors[label],
                "fused": _nine_digits(float(fused[label]) * size),
                "samples": [_nine_digits(float(count) * size) for count in counts[:, label]],
            }
            for label, name in enumerate(info.names)
        ],
        "weights": None if np.allclose(result.weights, 1 / n) else result.weights.round(6).tolist(),
    }


def _count_labels(prediction: Prediction) -> npt.NDArray[np.int64]:
    """Count the pixels of each class in each sample, "n l"."""
    labels, classes = prediction.result.labels, prediction.info.num_classes
    counts = np.zeros((labels.shape[1], classes), np.int64)
    for part in labels:  # slice by slice, because bincount makes 64-bit copies
        counts += np.stack([np.bincount(one.ravel(), minlength=classes) for one in part])
    return counts


def _nine_digits(value: float) -> float:
    """Round to nine significant digits, so that kilometers and microns keep the same precision."""
    return float(f"{value:.9g}")
