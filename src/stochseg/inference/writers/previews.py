"""Pictures to look at: the fused map over the image, and an overview of all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from stochseg.inference.result import LabelArray
from stochseg.inference.writers.base import Prediction
from stochseg.plotting import overview, write_figure
from stochseg.plotting.pictures import rgb_bytes, to_eight_bits
from stochseg.types import DatasetInfo, Window

OPACITY = 0.45
"""Of the colors that the overlay lays over the image."""
WINDOW_COLOR = (255, 213, 74)
SIDE = 512
"""Pixels of the longer side: at least of an overlay, at most of one panel of an overview."""


def write_overlay(prediction: Prediction, file: Path) -> None:
    """Write the slice with the most foreground, with the fused map over it, at least `SIDE` pixels on its longer
    side."""
    shown = prediction.shown_slice
    picture = overlay(prediction.stack.values[shown], prediction.result.fused[shown], prediction.info)
    picture, factor = enlarged(picture)
    if prediction.result.window is not None:
        _draw_window(picture, prediction.result.window, factor)
    picture.save(file)


def enlarged(picture: Image.Image) -> tuple[Image.Image, int]:
    """A picture with at least `SIDE` pixels on its longer side, and how many times larger it is."""
    factor = max(1, -(-SIDE // max(picture.size)))
    if factor == 1:
        return picture, 1
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST), factor


def _draw_window(picture: Image.Image, window: Window, factor: int) -> None:
    """Draw a box just outside the part that the model labels, whose pixels stay as they are."""
    (top, bottom), (left, right) = ((start * factor - 1, stop * factor) for start, stop in window)
    ImageDraw.Draw(picture).rectangle((left, top, right, bottom), outline=WINDOW_COLOR)


def write_overview(prediction: Prediction, file: Path) -> None:
    """Write the slice of the overlay with mean, entropy, fused map and all samples next to each other."""
    shown, info = prediction.shown_slice, prediction.info
    raw = prediction.stack.values[shown]
    stride = -(-max(raw.shape[:2]) // SIDE)  # a panel has fewer pixels anyway, and large ones take much memory
    channels = raw.reshape(*raw.shape[:2], -1)[::stride, ::stride].transpose(2, 0, 1)
    image = info.normalization(torch.from_numpy(np.ascontiguousarray(channels, np.float32)))
    write_figure(overview(image, prediction.result.samples_of(shown, stride), info), file)


def overlay(raw: npt.NDArray[Any], fused: LabelArray, info: DatasetInfo) -> Image.Image:
    """Draw an image "h w" or "h w c" with every class except the background in its color."""
    channels = raw.reshape(*raw.shape[:2], -1)
    gray = to_eight_bits(channels[..., : 3 if channels.shape[-1] >= 3 else 1])
    colors = np.array([rgb_bytes(color) for color in info.colors], np.float32)[fused]
    mixed = gray + OPACITY * (colors - gray)
    return Image.fromarray(np.where(fused[..., None] == 0, gray, mixed).round().astype(np.uint8))
