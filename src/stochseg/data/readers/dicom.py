"""DICOM files, read with pydicom."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data.readers.pictures import Palette, Picture, Pixels, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.extras import require

SUFFIXES = (".dcm", ".ima")


def is_dicom(name: str, head: bytes) -> bool:
    """Whether a file is DICOM, by its name or, since many archives number their files, by its first 132 bytes."""
    return name.lower().endswith(SUFFIXES) or head[128:132] == b"DICM"


def is_dicom_file(file: Path) -> bool:
    """Whether a file is DICOM; `OSError` if it cannot be read."""
    if is_dicom(file.name, b""):
        return True
    with file.open("rb") as stream:
        return is_dicom(file.name, stream.read(132))


def read_dataset(source: Path | bytes, where: str, **options: Any) -> Any:
    """Read a DICOM file, or the content of one, as a pydicom data set; `options` are those of `pydicom.dcmread`."""
    pydicom = require("pydicom", "medical", where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # values that matter are checked where they are used
            return pydicom.dcmread(source if isinstance(source, Path) else io.BytesIO(source), **options)
    except pydicom.errors.InvalidDicomError:
        raise UserError(f"{where} cannot be read as DICOM: the mark DICM is missing; copy or export it again") from None
    except Exception as error:  # a damaged file can fail anywhere in the parser, in any way
        raise UserError(f"{where} cannot be read as DICOM ({error}); copy or export it again") from None


def stored_pixels(dataset: Any, where: str) -> Pixels:
    """Decode the pixels of a DICOM data set as they are stored."""
    if "PixelData" not in dataset:
        raise UserError(f"{where} has no pixel data (a report or a structure set?), expected an image; remove it")
    try:
        return np.asarray(dataset.pixel_array)
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{where}: the compressed pixels cannot be decoded ({error}); "
            "install a decoder with: pip install pylibjpeg[all], or save the file uncompressed"
        ) from None
    except Exception as error:  # decoders are plug-ins, each with its own errors
        raise UserError(f"{where}: the pixels cannot be decoded ({error}); copy or export the file again") from None


def read_slice(content: bytes, where: str, palette: Palette) -> Picture:
    """Decode a slice with the modality's slope and intercept; MONOCHROME1 is not inverted."""
    dataset = read_dataset(content, where)
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise several_images(where, f"{dataset.NumberOfFrames} frames")
    values = stored_pixels(dataset, where)
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        pixels = require("pydicom.pixels", "medical", where)
        values = pixels.apply_color_lut(values, dataset) if palette == "colors" else values
    elif values.ndim == 2:
        values = _rescale(values, float(dataset.get("RescaleSlope", 1)), float(dataset.get("RescaleIntercept", 0)))
    rows, columns = dataset.get("PixelSpacing") or (0.0, 0.0)
    return Picture(values, stated_spacing(float(rows), float(columns)))


def _rescale(values: Pixels, slope: float, intercept: float) -> Pixels:
    """Apply slope and intercept; integers stay integers, in the fewest bits: Hounsfield units are int16."""
    if (slope, intercept) == (1.0, 0.0):
        return values
    scaled = values * slope + intercept
    if not (slope.is_integer() and intercept.is_integer()):
        return scaled
    fits = scaled.min() >= -(2**15) and scaled.max() < 2**15
    return scaled.astype(np.int16 if fits else np.int32)
