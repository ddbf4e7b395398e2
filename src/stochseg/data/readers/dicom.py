"""DICOM files, read with pydicom."""

from __future__ import annotations

import io
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data.readers.pictures import Palette, Picture, Pixels, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.limits import check_memory, max_file_bytes

SUFFIXES = (".dcm", ".ima")
_PIXEL_GROUPS = (0x0020, 0x0028, 0x7FE0)
"""Tags of the position of an image, of the layout of its pixels, and of the pixels."""


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
            _check_size(pydicom, source, where)
            dataset = pydicom.dcmread(source if isinstance(source, Path) else io.BytesIO(source), **options)
            for part in (dataset.file_meta, dataset):
                _decode(part)
            return dataset
    except UserError:
        raise
    except pydicom.errors.InvalidDicomError:
        raise UserError(f"{where} cannot be read as DICOM: the mark DICM is missing; copy or export it again") from None
    except Exception as error:  # a damaged file can fail anywhere in the parser, in any way
        raise UserError(f"{where} cannot be read as DICOM ({error}); copy or export it again") from None


def _check_size(pydicom: Any, source: Path | bytes, where: str) -> None:
    """Check the memory of the file, unpacked if its transfer syntax is "deflated"."""
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
        size = stream.seek(0, io.SEEK_END)
        check_memory(size, where)
        stream.seek(0)
        if stream.read(132)[128:] != b"DICM":
            return
        meta = pydicom.filereader._read_file_meta_info(stream)
        if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
            unpacker, room = zlib.decompressobj(-zlib.MAX_WBITS), max_file_bytes() - size
            while (packed := unpacker.unconsumed_tail or stream.read(2**16)) and room >= 0:
                room -= len(unpacker.decompress(packed, 2**24))
            check_memory(max_file_bytes() - room, where)


def _decode(dataset: Any) -> None:
    """Decode all values, which pydicom does when they are used, so that damage shows here.

    A value that cannot be decoded is removed if neither the pixels nor their position depend on it.
    """
    for tag in list(dataset.keys()):
        try:
            element = dataset[tag]
        except Exception:
            if tag.group in _PIXEL_GROUPS:
                raise
            del dataset[tag]
            continue
        for item in element.value or () if element.VR == "SQ" else ():
            _decode(item)


def stored_pixels(dataset: Any, where: str) -> Pixels:
    """Decode the pixels of a DICOM data set as they are stored."""
    if "PixelData" not in dataset:
        raise UserError(f"{where} has no pixel data (a report or a structure set?), expected an image; remove it")
    try:
        check_memory(len(dataset.PixelData) + 2 * _decoded_bytes(dataset), where)
        return np.asarray(dataset.pixel_array)
    except UserError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{where}: the compressed pixels cannot be decoded ({error}); "
            "install a decoder with: pip install pylibjpeg[all], or save the file uncompressed"
        ) from None
    except Exception as error:  # decoders are plug-ins, each with its own errors
        raise UserError(f"{where}: the pixels cannot be decoded ({error}); copy or export the file again") from None


def _decoded_bytes(dataset: Any) -> int:
    values = int(dataset.Rows) * int(dataset.Columns) * int(dataset.get("SamplesPerPixel") or 1)
    return values * int(dataset.get("NumberOfFrames") or 1) * -(-int(dataset.BitsAllocated) // 8)


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


def _holds(kind: type[np.signedinteger[Any]], values: list[float]) -> bool:
    limits = np.iinfo(kind)
    return limits.min <= min(values) and max(values) <= limits.max


def _rescale(values: Pixels, slope: float, intercept: float) -> Pixels:
    """Apply slope and intercept; integers stay integers, in the fewest bits: Hounsfield units are int16."""
    if (slope, intercept) == (1.0, 0.0):
        return values
    ends = [float(end) * slope + intercept for end in (values.min(), values.max())]
    whole = slope.is_integer() and intercept.is_integer()
    fitting = [kind for kind in (np.int16, np.int32) if whole and _holds(kind, ends)]
    scaled = np.empty(values.shape, fitting[0] if fitting else np.float32)
    for row, out in zip(values, scaled, strict=True):  # one by one, because it computes in 8 bytes per pixel
        out[...] = row * slope + intercept
    return scaled
