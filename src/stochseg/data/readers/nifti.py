"""NIfTI volumes and slices, read with nibabel."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.pictures import Picture, Pixels, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.extras import require

SUFFIXES = (".nii.gz", ".nii")
_MILLIMETERS = {"meter": 1000.0, "micron": 0.001}


@dataclass(frozen=True)
class Volume:
    """A NIfTI array "x y z …" and its geometry."""

    values: Pixels
    affine: npt.NDArray[np.float64]
    """Array index to position, "4 4", in the unit of the file."""
    header: Any
    """The nibabel header."""
    unit: float
    """Millimeters per unit of the affine."""


def read_volume(source: Path | bytes, where: str) -> Volume:
    """Read a NIfTI file, or the content of one. Uncompressed files are mapped into memory, not loaded."""
    nibabel = require("nibabel", "medical", where)
    try:
        image = nibabel.load(source) if isinstance(source, Path) else _from_bytes(nibabel, source)
        values = np.asanyarray(image.dataobj)
        unit = _MILLIMETERS.get(image.header.get_xyzt_units()[0], 1.0)
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as NIfTI ({reason}); it is damaged or cut short") from None
    if values.dtype.kind not in "buif":
        raise UserError(f"{where}: expected one number per voxel, got {values.dtype}; split it into its channels")
    return Volume(values, image.affine, image.header, unit)


def _from_bytes(nibabel: Any, content: bytes) -> Any:
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    second = nibabel.Nifti2Header.may_contain_header(content)
    return (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)


def read_slice(content: bytes, where: str) -> Picture:
    """Decode a volume of one slice. The first axis of NIfTI is x, so it becomes the width."""
    volume = read_volume(content, where)
    values, zooms = volume.values, volume.header.get_zooms()
    axes = [i for i, length in enumerate(values.shape) if length > 1]
    if len(axes) > 2:
        raise several_images(where, f"a volume of shape {values.shape}")
    axes += [i for i in range(values.ndim) if i not in axes][: 2 - len(axes)]
    across, down = sorted(axes)
    image = values.reshape(values.shape[across], values.shape[down]).T
    return Picture(image, stated_spacing(zooms[down] * volume.unit, zooms[across] * volume.unit))
