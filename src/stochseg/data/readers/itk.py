"""NRRD and MetaImage volumes, read with SimpleITK."""

from __future__ import annotations

import math
import re
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
        _check_place(head, where)
        reader = sitk.ImageFileReader()
        reader.SetImageIO("NrrdImageIO" if is_nrrd else "MetaImageIO")
        reader.SetFileName(str(file))
        reader.ReadImageInformation()
        voxels = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
        check_memory(2 * 8 * voxels, where)  # stored in at most 8 bytes, and copied
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
    """Raise a UserError for a header that is too long, or that has a line that is."""
    for line in head.split(b"\n"):
        if end.fullmatch(line):
            return
        if len(line) > _LINE and not free.match(line):
            raise UserError(
                f"{where}: the line {line[:20].decode(errors='replace')!r}… of its header has more than {_LINE} "
                "characters; it is damaged, or save it as NIfTI"
            )
    if len(head) == _HEADER:
        raise UserError(f"{where}: its header has more than {_HEADER:,} bytes; it is damaged, or save it as NIfTI")


def _check_place(head: bytes, where: str) -> None:
    """Raise a UserError if the voxels are in other files than one in the same folder."""
    found = _ELSEWHERE.search(head)
    place = found[1].decode(errors="replace") if found else "LOCAL"
    if place != "LOCAL" and (Path(place).name != place or place.startswith("LIST") or "%" in place):
        raise UserError(f"{where} takes its voxels from {place!r}, expected a file in its own folder; save it as .mha")


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
