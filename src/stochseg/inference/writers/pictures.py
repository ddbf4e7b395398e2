"""TIFF and palette PNG: the results of inputs without a place in space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tifffile
from PIL import Image

from stochseg.data.readers.pictures import Pixels
from stochseg.inference.writers.base import Prediction
from stochseg.plotting.pictures import rgb_bytes

AXES = {"labels": "QYX", "fused": "YX", "mean": "CYX", "entropy": "YX"}
"""Axes of each part in a TIFF: Q samples, C classes."""


def fits_palette(prediction: Prediction) -> bool:
    return prediction.info.num_classes <= 256


def write_tiff(prediction: Prediction, file: Path, part: str) -> None:
    """Write one array of a picture as TIFF, one page per sample or class."""
    names = list(prediction.info.names) if part == "mean" else []
    write_pages(prediction, file, getattr(prediction.result, part)[0], AXES[part], names)


def write_pages(prediction: Prediction, file: Path, array: Pixels, axes: str, classes: Sequence[str] = ()) -> None:
    """Write an array with the resolution of a picture as TIFF. axes: see `AXES`; classes: names of its pages."""
    options: dict[str, Any] = {"photometric": "minisblack", "compression": "zlib"}
    if prediction.stack.dpi is not None:
        options |= {"resolution": prediction.stack.dpi, "resolutionunit": "INCH"}
    names: dict[str, Any] = {"class_names": tuple(classes)} if classes else {}
    if prediction.stack.pixel is not None:
        names = {"Channel": {"Name": list(classes)}} if classes else {}
        names |= {f"PhysicalSize{axis}": 1000 * mm for axis, mm in zip("YX", prediction.stack.pixel, strict=True)}
        options["ome"] = True  # like the input, in micrometers
    tifffile.imwrite(file, array, metadata={"axes": axes, **names}, **options)


def write_palette_png(prediction: Prediction, file: Path) -> None:
    """Write the fused map of a picture as a PNG whose palette indices are the labels."""
    picture = Image.fromarray(prediction.result.fused[0]).convert("P")
    picture.putpalette([value for color in prediction.info.colors for value in rgb_bytes(color)])
    picture.save(file, dpi=prediction.stack.dpi)
