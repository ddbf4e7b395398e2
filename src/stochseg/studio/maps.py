"""Images and label maps as the page reads them: PNG for images, gzip NIfTI for volumes, in one frame.

The frame of a volume is that of its slices as they are shown: x to the right (columns), y down (rows), z through the
slices. Points, offsets, contours and every NIfTI file that the page reads are in this frame, whatever the order in the
user's file.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from stochseg.data.readers.nifti import Slicing
from stochseg.data.readers.scans import index_map
from stochseg.extras import require
from stochseg.plotting.outlines import outline_lines
from stochseg.types import Spacing

Array = npt.NDArray[Any]
GZIP_LEVEL = 1
"""Files stay on this machine or go to a nearby browser: speed counts more than size."""


def display_affine(affine: npt.ArrayLike, slicing: Slicing, size: Sequence[int]) -> Array:
    """Column, row and slice of a stack of this size to millimeters, "4 4", from the affine of its file's array."""
    shape = [0, 0, 0]
    for axis, length in zip(slicing.axes, size, strict=True):
        shape[axis] = length
    placed = np.asarray(affine, np.float64) @ index_map(slicing, shape)
    return placed[:, [2, 1, 0, 3]]


def spaced_affine(spacing: Spacing | None) -> Array:
    """The affine of a volume without a place in space."""
    slices, rows, columns = (1.0, 1.0, 1.0) if spacing is None else spacing
    return np.diag([-columns, -rows, slices, 1.0])  # shown as a radiologist expects: left is right


def png_bytes(values: Array) -> bytes:
    """A PNG of "h w" or "h w 3", 8 bits."""
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG", compress_level=1)
    return target.getvalue()


def nifti_bytes(stack: Array, affine: Array) -> bytes:
    """A gzip NIfTI of a stack "s h w", or "n s h w" as 4-D, in the frame of the page."""
    nibabel = require("nibabel", "medical", "volumes")
    data = np.moveaxis(stack, 0, -1) if stack.ndim == 4 else stack  # "s h w n"
    image = nibabel.Nifti1Image(data.swapaxes(0, 2), affine, dtype=data.dtype)
    image.header.set_xyzt_units("mm")
    return gzip.compress(image.to_bytes(), GZIP_LEVEL, mtime=0)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file that a reader sees as a whole or not at all."""
    scratch = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    scratch.write_bytes(content)
    os.replace(scratch, file)


def compact_volume(values: Array) -> Array:
    """Intensities in the smallest of uint8, int16 and float32 that holds them."""
    if values.dtype.kind in "ui" or bool((np.isfinite(values) & (values == np.rint(values))).all()):
        low, high = float(values.min()), float(values.max())
        for kind in (np.uint8, np.int16):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return values.astype(kind)
    return np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)


def contours_of(maps: Array) -> dict[str, Any]:
    """Outlines of the foreground classes of label maps "n s h w"."""
    slices: dict[str, list[Any]] = {}
    for i, sample in enumerate(maps):
        for z in np.flatnonzero((sample != 0).any((1, 2))):
            for c in np.unique(sample[z][sample[z] != 0]):
                found = [{"sample": i, "class": int(c), "line": line} for line in outline_lines(sample[z] == c)]
                slices.setdefault(str(int(z)), []).extend(found)
    return {"slices": slices}


def write_json(file: Path, content: Any) -> None:
    """Write a JSON document that a reader sees as a whole or not at all."""
    write_bytes(file, json.dumps(content, allow_nan=False).encode())
