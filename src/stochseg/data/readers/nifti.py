"""NIfTI volumes and slices, read with nibabel."""

from __future__ import annotations

import gzip
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.pictures import Picture, Pixels, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.limits import check_memory

_LONGEST_HEADER = 540
"""Bytes of the header of NIfTI-2."""
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
    """Read a NIfTI file, or the content of one. Uncompressed files are mapped into memory, not loaded.

    Values that a slope scales are float32.
    """
    nibabel = require("nibabel", "medical", where)
    try:
        image = _open(nibabel, source, where)
        values = _scaled(nibabel, image.dataobj)
        unit = _MILLIMETERS.get(image.header.get_xyzt_units()[0], 1.0)
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as NIfTI ({reason}); it is damaged or cut short") from None
    if values.dtype.kind not in "buif":
        raise UserError(f"{where}: expected one number per voxel, got {values.dtype}; split it into its channels")
    return Volume(values, image.affine, image.header, unit)


def _open(nibabel: Any, source: Path | bytes, where: str) -> Any:
    """Open the image after a check of what its header asks for."""
    raw = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        head = (gzip.GzipFile(fileobj=raw) if packed else raw).read(_LONGEST_HEADER)
        size = raw.seek(0, io.SEEK_END)
    second = nibabel.Nifti2Header.may_contain_header(head)
    kind = nibabel.Nifti2Image if second else nibabel.Nifti1Image
    _check_header(kind.header_class(head[: kind.header_class.sizeof_hdr], check=False), None if packed else size, where)
    if isinstance(source, Path) and packed == source.name.lower().endswith(".gz"):
        return kind.from_filename(source)
    content = source.read_bytes() if isinstance(source, Path) else source
    return kind.from_stream(gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content))


def _check_header(header: Any, size: int | None, where: str) -> None:
    """Raise a UserError if the voxels do not fit into memory, or into a file of `size` bytes that is not packed."""
    shape, offset = header.get_data_shape(), max(0, int(header["vox_offset"]))
    voxels = math.prod(int(length) for length in shape)
    stored = header.get_data_dtype().itemsize
    scaled = 4 if np.isfinite(header["scl_slope"]) and (header["scl_slope"], header["scl_inter"]) != (1, 0) else 0
    if size is not None and offset + stored * voxels > size:
        raise UserError(
            f"{where} cannot be read as NIfTI: its header states {shape} voxels; it is damaged or cut short"
        )
    in_memory = offset + stored * voxels if size is None else 0  # otherwise mapped
    check_memory(in_memory + scaled * voxels, where)


def _scaled(nibabel: Any, data: Any) -> Pixels:
    """Return the voxels. Slices are scaled one by one, because nibabel computes in 8 bytes per voxel."""
    values: Pixels = np.asanyarray(data.get_unscaled())
    if (data.slope, data.inter) == (1.0, 0.0) or values.ndim == 0 or values.dtype.kind not in "buif":
        return values
    scaled = np.empty(values.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        longest = max(range(values.ndim), key=lambda axis: (values.shape[axis], axis))
        for part, out in zip(np.moveaxis(values, longest, 0), np.moveaxis(scaled, longest, 0), strict=True):
            out[...] = nibabel.volumeutils.apply_read_scaling(part, data.slope, data.inter)
    return scaled


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
