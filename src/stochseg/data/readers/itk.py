"""NRRD and MetaImage volumes, read with SimpleITK."""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data.readers.nifti import Volume
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.limits import check_memory

SUFFIXES = (".nrrd", ".mha", ".mhd")
RAW = (".raw", ".zraw")
"""Suffixes of the voxels next to an .mhd file."""
_HEADER = 2**16
"""Bytes of a file in which its header ends."""
_LINE = 255
"""Bytes of a line of a header. Longer ones overflow memory in the libraries of both formats, except free texts."""
_NRRD = (re.compile(rb"\r?"), re.compile(rb"#|[^:]*:="))
_META = (re.compile(rb"ElementDataFile\s*=.*"), re.compile(rb"[^=]*\|"))
"""The last line of a header, and the start of free texts: comments, keys with values, DICOM tags."""
_CONTROL = re.compile(rb"[^\t\x20-\xff]")
"""Characters that no header has, and that end the library of NRRD."""
_AXES = re.compile(rb"^\s*(?:NDims\s*=|dimension\s*:)\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE)
_COMPRESSED = re.compile(rb"^CompressedData\s*=\s*(?:True|1)", re.MULTILINE | re.IGNORECASE)
_ELSEWHERE = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE)


def read_volume(file: Path, where: str) -> Volume:
    """Read a volume with or without channels. A 2-D image becomes an array of two axes.

    Raises:
        UserError: The file is damaged, has more than three axes, is too large, or takes its voxels from another folder.
    """
    sitk = require("SimpleITK", "medical", where)
    is_nrrd = file.suffix.lower() == ".nrrd"
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEADER)
        _check_lines(head, *(_NRRD if is_nrrd else _META), where)
        place = _data_place(head, where)
        reader = sitk.ImageFileReader()
        reader.SetImageIO("NrrdImageIO" if is_nrrd else "MetaImageIO")
        reader.SetFileName(str(file))
        reader.ReadImageInformation()
        voxels = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
        check_memory(2 * 8 * voxels, where)  # stored in at most 8 bytes, and copied
        if not is_nrrd and _COMPRESSED.search(head):
            bits = re.search(r"(\d+)-bit", sitk.GetPixelIDValueAsString(reader.GetPixelID()))
            _check_compressed(file, place, voxels * (int(bits[1]) if bits else 8) // 8, where)
        image = reader.Execute()
    except UserError:
        raise
    except Exception as error:  # the library raises RuntimeError for all
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise UserError(
            f"{where} cannot be read as a volume ({reason[0].strip()}); it is damaged or cut short"
        ) from None
    return _convert(sitk, image, where)


def _check_lines(head: bytes, end: re.Pattern[bytes], free: re.Pattern[bytes], where: str) -> None:
    """Raise a UserError for a header that ends the program in the libraries of both formats."""
    axes = _AXES.search(head)
    if axes and not re.fullmatch(rb"[1-9]", axes[1]):
        raise UserError(f"{where}: expected 2 or 3 axes, got {axes[1][:20].decode(errors='replace')!r}; it is damaged")
    for line in head.split(b"\n"):
        if end.fullmatch(line):
            return
        if _CONTROL.search(line.rstrip(b"\r")):
            raise UserError(f"{where}: its header has characters that are no text; it is damaged")
        if len(line) > _LINE and not free.match(line):
            raise UserError(
                f"{where}: the line {line[:20].decode(errors='replace')!r}… of its header has more than {_LINE} "
                "characters; it is damaged, or save it as NIfTI"
            )
    if len(head) == _HEADER:
        raise UserError(f"{where}: its header has more than {_HEADER:,} bytes; it is damaged, or save it as NIfTI")


def _data_place(head: bytes, where: str) -> str:
    """Return the file with the voxels, or LOCAL. Raise a UserError if it is not in the same folder."""
    found = _ELSEWHERE.search(head)
    place = found[1].decode(errors="replace") if found else "LOCAL"
    if place != "LOCAL" and (Path(place).name != place or place.startswith("LIST") or "%" in place):
        raise UserError(f"{where} takes its voxels from {place!r}, expected a file in its own folder; save it as .mha")
    return place


def _check_compressed(file: Path, place: str, size: int, where: str) -> None:
    """Raise a UserError for compressed voxels that are damaged: the library may try to read them for ever."""
    unpack, found = zlib.decompressobj(wbits=47), 0  # zlib or gzip
    with (file if place == "LOCAL" else file.parent / place).open("rb") as stream:
        if place == "LOCAL":
            while (line := stream.readline(_HEADER)) and not _META[0].fullmatch(line.rstrip(b"\r\n")):
                pass
        try:
            while found < size and not unpack.eof and (packed := unpack.unconsumed_tail or stream.read(2**16)):
                found += len(unpack.decompress(packed, 2**20))
        except zlib.error as error:
            raise UserError(f"{where}: its compressed voxels are damaged ({error})") from None
    if found < size:
        raise UserError(f"{where}: expected {size:,} bytes of voxels, got {found:,}; it is damaged or cut short")


def _convert(sitk: Any, image: Any, where: str) -> Volume:
    dims = image.GetDimension()
    if dims not in (2, 3):
        raise UserError(f"{where}: expected a volume of three axes, got {dims}; save it as one volume")
    values = sitk.GetArrayFromImage(image)  # "z y x" or "z y x c"
    values = np.moveaxis(values, range(dims), range(dims)[::-1])
    lps = np.eye(4)
    lps[:dims, :dims] = np.array(image.GetDirection()).reshape(dims, dims) * image.GetSpacing()
    lps[:dims, 3] = image.GetOrigin()
    return Volume(values, np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps)
