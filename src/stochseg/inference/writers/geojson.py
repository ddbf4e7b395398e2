"""Outlines of the fused map as GeoJSON, which QuPath imports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy import ndimage

from stochseg.data.readers.geojson import trace_rings
from stochseg.data.readers.polygons import Ring
from stochseg.inference.result import LabelArray
from stochseg.inference.writers.base import Prediction
from stochseg.plotting.pictures import rgb_bytes
from stochseg.types import DatasetInfo


def write_geojson(prediction: Prediction, file: Path) -> None:
    """Write one annotation per class of the fused map of a picture."""
    features = [
        class_feature(prediction.result.fused[0], label, prediction.info)
        for label in range(1, prediction.info.num_classes)
        if (prediction.result.fused[0] == label).any()
    ]
    content = {"type": "FeatureCollection", "features": features}
    file.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def class_feature(labels: LabelArray, label: int, info: DatasetInfo) -> dict[str, object]:
    """The outlines of one class of a map "h w" as a feature with QuPath's properties."""
    parts, count = ndimage.label(labels == label)
    polygons = []
    for number, box in enumerate(ndimage.find_objects(parts, count), start=1):
        corner = np.array([box[1].start, box[0].start])
        rings = sorted(trace_rings(parts[box] == number), key=_area, reverse=True)  # the outline, then holes
        polygons.append([(ring + corner).tolist() for ring in rings])
    return {
        "type": "Feature",
        "geometry": {"type": "MultiPolygon", "coordinates": polygons},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": info.names[label], "color": list(rgb_bytes(info.colors[label]))},
        },
    }


def _area(ring: Ring) -> float:
    x, y = ring.T
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1])) / 2
