"""Decoding of image files of any supported format, with errors that name the file.

Supported are PNG, JPEG, TIFF and all other formats of Pillow, arrays of numpy, and with `stochseg[medical]` NIfTI and
DICOM slices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image, UnidentifiedImageError

from stochseg.data.readers import arrays, dicom, nifti, tiff
from stochseg.data.readers.pictures import Palette, Picture, Pixels, read_with_pillow, several_images
from stochseg.errors import UserError


def read_picture(content: bytes, where: str, palette: Palette, *, oriented: bool = True) -> Picture:
    """Decode the content of an image file.

    `where` is the name of the file, which starts error messages; NIfTI is recognized by its suffix, and turned by its
    affine if `oriented`.
    """
    try:
        if dicom.is_dicom(where, content):
            picture = dicom.read_slice(content, where, palette)
        elif where.lower().endswith(nifti.SUFFIXES):
            picture = nifti.read_slice(content, where, oriented=oriented)
        elif where.lower().endswith(arrays.SUFFIXES):
            picture = Picture(_picture_axes(arrays.decode_array(content, where), where))
        elif content.startswith(tiff.CLASSIC + tiff.BIG):
            picture = tiff.read_tiff(content, where, palette)
        else:
            picture = read_with_pillow(content, where, palette)
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise UserError(
            f"{where}: too many pixels for one image, expected at most {2 * (Image.MAX_IMAGE_PIXELS or 0):,}; cut it "
            "into several, shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS in Python"
        ) from None
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        reason = "no known format" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as an image ({reason}); it is damaged or of another kind") from None
    return replace(picture, values=compact(picture.values, where))


def _picture_axes(values: Pixels, where: str) -> Pixels:
    if values.ndim not in (2, 3):
        raise several_images(where, f"an array of shape {values.shape}")
    return values


def compact(values: Pixels, where: str) -> Pixels:
    """Convert to native byte order and at most 32 bits, as torch and the packed store need them."""
    if values.dtype == bool:
        return values.astype(np.uint8)
    if values.dtype.kind not in "uif":
        raise UserError(f"{where}: expected one number per pixel and channel, got {values.dtype}")
    if values.dtype.kind == "f" or values.size == 0:
        return values.astype(np.float32)
    if values.dtype.itemsize <= 2:
        return values.astype(values.dtype.newbyteorder("="))
    limits = np.iinfo(np.int32)
    fits = values.min() >= limits.min and values.max() <= limits.max
    return values.astype(np.int32 if fits else np.float32)
