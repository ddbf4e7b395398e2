"""Decoded images, and the formats that Pillow reads: PNG, JPEG, BMP, WebP and others."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageMode

from stochseg.errors import UserError
from stochseg.limits import check_memory

Pixels: TypeAlias = npt.NDArray[Any]
"""Numbers of any type: files decide."""
Palette: TypeAlias = Literal["colors", "indices"]
"""How to read a palette image: an image means its colors, a label map its indices."""

_COLOR_MODES = {"P": "RGB", "PA": "RGBA", "1": "L"}
"""Pillow modes whose stored numbers are not intensities, and the mode that has them."""


SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
"""Of files whose pixels have no place in space."""


@dataclass(frozen=True)
class Place:
    """How the array of a slice was turned to show it, and the positions of its first and last pixel, "2 3"."""

    turn: object
    corners: npt.NDArray[np.float64]

    def matches(self, other: Place) -> bool:
        """Whether two slices of one size show the same pixels, which may be stored in different orders."""
        nearby = np.linalg.norm(self.corners[1] - self.corners[0]) * 0.01
        return self.turn == other.turn or bool(np.allclose(self.corners, other.corners, rtol=0, atol=nearby))


@dataclass(frozen=True)
class Picture:
    """Raw intensities "h w" or "h w c".

    spacing: of the pixels (h, w) in millimeters, if the file states it; place: of a slice that was turned by it.
    """

    values: Pixels
    spacing: tuple[float, float] | None = None
    place: Place | None = None


def read_with_pillow(content: bytes, where: str, palette: Palette) -> Picture:
    """Decode a picture that Pillow reads without loss; others are refused."""
    depth, kind = content[24:25], content[25:26]
    if content[:4] == b"\x89PNG" and depth == b"\x10" and kind != b"\0":
        raise UserError(f"{where}: PNG with 16 bits per channel is supported in gray only; save this image as TIFF")
    with open_quietly(io.BytesIO(content)) as image:
        if image.format == "EPS":
            raise UserError(f"{where} is PostScript, a program that draws; save it as PNG or TIFF")
        convert = palette == "colors" and image.mode in _COLOR_MODES
        _check_size(image, len(content), convert, where)
        pages = getattr(image, "n_frames", 1)
        if pages > 1 and image.format != "MPO":  # a photograph whose second picture is its preview
            raise several_images(where, f"{pages} pages")
        return Picture(np.asarray(image.convert(_COLOR_MODES[image.mode]) if convert else image))


def open_quietly(source: Path | io.BytesIO) -> Image.Image:
    """Open a picture without Pillow's warning about many pixels: the memory is checked before they are read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(source)


def _check_size(image: Image.Image, encoded: int, convert: bool, where: str) -> None:
    """Check the memory of decoding: the file, Pillow's pixels, those of the converted picture, and two arrays."""
    values = np.dtype(ImageMode.getmode(image.mode).typestr).itemsize * len(image.getbands())
    stored = values if values < 3 else max(4, values)  # Pillow stores colors in 4 bytes
    pixel = stored + (4 + 2 * 3 if convert else 2 * values)
    check_memory(encoded + pixel * image.width * image.height, where)


class SeveralImages(UserError):
    """A file contains more than one 2-D image."""


def several_images(where: str, found: str) -> SeveralImages:
    """Build the error for a file that contains more than one 2-D image."""
    return SeveralImages(
        f"{where} contains {found}, expected one 2-D image; save each as its own file (ID-000, ID-001, …) and set "
        "`group` in dataset.yaml to the expression that finds the patient; if all images are volumes, set "
        "`spatial_dims: 3` there"
    )


def stated_spacing(height: float, width: float) -> tuple[float, float] | None:
    """Return the spacing (h, w), or None for the zeros and NaN of headers without one."""
    return (float(height), float(width)) if height > 0 and width > 0 else None
