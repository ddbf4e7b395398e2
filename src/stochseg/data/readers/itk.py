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
"""Bytes of a file in which the place of its voxels is stated."""
_ELSEWHERE = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE)


def read_volume(file: Path, where: str) -> Volume:
    """Read a volume with or without channels. A 2-D image becomes an array of two axes.

    Raises:
        UserError: The file is damaged, has more than three axes, is too large, or takes its voxels from another folder.
    """
    sitk = require("SimpleITK", "medical", where)
    try:
        _check_place(file, where)
        reader = sitk.ImageFileReader()
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


def _check_place(file: Path, where: str) -> None:
    """Raise a UserError if the voxels are in other files than one in the same folder."""
    with file.open("rb") as stream:
        found = _ELSEWHERE.search(stream.read(_HEADER))
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
