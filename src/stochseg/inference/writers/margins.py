"""Calibrated outputs: margin maps of outlines and scaled mean probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from stochseg.analysis.margins import BAND, INSIDE
from stochseg.inference.calibrated import scaled_result
from stochseg.inference.writers.base import Prediction
from stochseg.inference.writers.nifti import volume_image, write_nifti
from stochseg.inference.writers.pictures import write_pages, write_tiff
from stochseg.inference.writers.previews import enlarged
from stochseg.plotting.pictures import rgb_bytes, to_eight_bits

TINTS = {BAND: 0.45, INSIDE: 0.15}
"""How strong the color of the class is laid over the band and the inner region."""


def write_margin_tiff(prediction: Prediction, file: Path) -> None:
    """Write the margin maps of a picture, one page per class: 0 outside, 1 in the band, 2 inside."""
    names = [prediction.info.names[label] for label in prediction.margins]
    write_pages(prediction, file, np.concatenate(list(prediction.margins.values())), "CYX", names)


def write_margin_nifti(prediction: Prediction, file: Path) -> None:
    """Write the margin maps of a volume, "x y z" of one class, "x y z c" of several."""
    assert prediction.stack.lattice is not None
    maps = list(prediction.margins.values())
    stack = maps[0] if len(maps) == 1 else np.stack(maps, -1)
    volume_image(stack, "margin", prediction.stack.lattice).to_filename(file)


def write_margin_preview(prediction: Prediction, file: Path) -> None:
    """Write the slice of the overlay with the bands of all classes over it."""
    shown, info = prediction.shown_slice, prediction.info
    raw = prediction.stack.values[shown]
    channels = raw.reshape(*raw.shape[:2], -1)
    mixed = to_eight_bits(channels[..., : 3 if channels.shape[-1] >= 3 else 1]) * np.ones(3, np.float32)
    for label, margin in prediction.margins.items():
        for value, strength in TINTS.items():
            place = margin[shown] == value
            mixed[place] += strength * (np.array(rgb_bytes(info.colors[label]), np.float32) - mixed[place])
    enlarged(Image.fromarray(mixed.round().astype(np.uint8)))[0].save(file)


def write_scaled_tiff(prediction: Prediction, file: Path) -> None:
    """Write the scaled mean probabilities of a picture, one page per class."""
    write_tiff(replace(prediction, result=scaled_result(prediction)), file, "mean")


def write_scaled_nifti(prediction: Prediction, file: Path) -> None:
    """Write the scaled mean probabilities of a volume."""
    write_nifti(replace(prediction, result=scaled_result(prediction)), file, "mean")
