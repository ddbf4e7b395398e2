"""NIfTI volumes and slices, read with nibabel, and cut into slices as DICOM stores them.

The affine says how a patient lies in the array, so the result does not depend on the order of the voxels: columns of a
slice run to the patient's left (sagittal: to the back), rows to the back (coronal, sagittal: to the feet).
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.pictures import Picture, Pixels, Place, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.limits import check_memory

_LONGEST_HEADER = 540
"""Bytes of the header of NIfTI-2."""
SUFFIXES = (".nii.gz", ".nii")
_MILLIMETERS = {"meter": 1000.0, "micron": 0.001}
THICK = 1.5
"""An axis whose spacing exceeds both others by this factor is the one along which slices were taken."""
Plane: TypeAlias = Literal["axial", "coronal", "sagittal"]
PLANES: dict[Plane, int] = {"sagittal": 0, "coronal": 1, "axial": 2}
"""The axis of NIfTI's space (to the right, to the front, to the head) on which a plane is perpendicular."""


@dataclass(frozen=True)
class Slicing:
    """How an array "x y z …" is cut into slices "s h w …", and put together again.

    axis: of the array, along which slices follow each other; transposed: whether the first of the other two axes is the
    height, not the width; flipped: axes of the array that are read backwards.
    """

    axis: int = 2
    transposed: bool = False
    flipped: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[int, int, int]:
        """Axes of the array that a stack has as slices, rows and columns."""
        first, second = (i for i in range(3) if i != self.axis)
        return (self.axis, first, second) if self.transposed else (self.axis, second, first)

    def cut(self, volume: Pixels) -> Pixels:
        """Turn an array "x y z …" into a stack "s h w …"."""
        return np.moveaxis(np.flip(volume, self.flipped), self.axes, (0, 1, 2))

    def assemble(self, stack: Pixels) -> Pixels:
        """Turn a stack "s h w …" into an array "x y z …"."""
        return np.flip(np.moveaxis(stack, (0, 1, 2), self.axes), self.flipped)


@dataclass(frozen=True)
class Volume:
    """An array "x y z …" and its geometry as in NIfTI: x to the right, y to the front, z to the head."""

    values: Pixels
    affine: npt.NDArray[np.float64]
    """Array index to position, "4 4", in the unit of the file."""
    header: Any = None
    """The nibabel header; None for a volume of another format, which always states its orientation."""
    unit: float = 1.0
    """Millimeters per unit of the affine."""

    def slicing(self, axis: int | Plane | None = None) -> Slicing:
        """Choose the slices by the affine.

        Args:
            axis: Of the array, or an anatomical plane. None: the axis of length 1 if there is one; else an axis whose
                spacing exceeds both others by `THICK`; else axial slices.
        """
        world, signs = self._orientation()
        if isinstance(axis, str):
            axis = world.index(PLANES[axis])
        if axis is None:
            axis = self._through_plane(world)
        if not self.is_oriented:
            return Slicing(axis)
        across, down = (i for i in range(3) if i != axis)
        backwards = [i for i in (across, down) if signs[i] > 0]  # columns and rows run to the left, the back, the feet
        if (signs[axis] > 0) == (world[axis] == PLANES["coronal"]):  # slices to the head, the back, the right
            backwards.append(axis)
        return Slicing(axis, world[across] > world[down], tuple(sorted(backwards)))

    @property
    def is_placed(self) -> bool:
        """Whether the affine places the voxels in space."""
        return bool(np.isfinite(self.affine).all() and np.linalg.det(self.affine) != 0)

    @property
    def is_oriented(self) -> bool:
        """Whether the file states its orientation."""
        return states_orientation(self.header)

    def _orientation(self) -> tuple[list[int], list[int]]:
        """The axis of space that each axis of the array is closest to, and whether it runs along (1) or against (-1)
        it; that of the array if the file does not state it."""
        if not self.is_oriented:
            return [0, 1, 2], [1, 1, 1]
        nibabel = require("nibabel", "medical", "NIfTI")
        closest = nibabel.io_orientation(self.affine).T
        if not np.isfinite(closest).all():
            raise UserError("the orientation that the volume states is flat: an axis has no direction in space")
        world, signs = closest.astype(int).tolist()
        return world, signs

    def _through_plane(self, world: list[int]) -> int:
        shape = (*self.values.shape, 1, 1, 1)[:3]
        thin = [i for i in range(3) if shape[i] == 1]
        if len(thin) == 1:
            return thin[0]
        spacing = np.linalg.norm(self.affine[:3, :3], axis=0)
        *_, second, last = np.argsort(spacing)
        return int(last) if spacing[last] > THICK * spacing[second] else world.index(PLANES["axial"])


def states_orientation(header: Any) -> bool:
    """Whether a NIfTI header states where the axes point, as other formats (None) do."""
    return header is None or bool(header["sform_code"] or header["qform_code"])


def slice_spacing(affine: npt.NDArray[np.float64], axes: Sequence[int]) -> tuple[float, float, float]:
    """Return the distances between slices, rows and columns, whose axes of the array are `axes`.

    That of slices is along their normal, so that the product is the volume of a voxel also in the sheared volume of a
    tilted gantry.
    """
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    slices, rows, columns = (float(lengths[axis]) for axis in axes)
    return slices * float(abs(np.linalg.det(affine[:3, :3] / lengths))), rows, columns


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


def stated_shape(source: Path | bytes, where: str) -> tuple[int, ...]:
    """Read the shape of the array of a NIfTI file from its header."""
    nibabel = require("nibabel", "medical", where)
    try:
        return tuple(int(length) for length in _open(nibabel, source, where).shape)
    except UserError:
        raise
    except Exception as error:  # see `read_volume`
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as NIfTI ({reason}); it is damaged or cut short") from None


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


def read_slice(content: bytes, where: str, *, oriented: bool = True) -> Picture:
    """Decode a volume of one slice.

    Args:
        content: Of the file.
        where: Its name, for error messages.
        oriented: Whether to turn the slice by its affine. If not, the first axis of the array is the width.
    """
    volume = read_volume(content, where)
    values, zooms = volume.values, volume.header.get_zooms()
    axes = [i for i, length in enumerate(values.shape) if length > 1]
    if len(axes) > 2:
        raise several_images(where, f"a volume of shape {values.shape}")
    axes += [i for i in range(values.ndim) if i not in axes][: 2 - len(axes)]
    (columns, rows), place = sorted(axes), None
    if oriented and rows < 3 and volume.is_placed:
        slicing = volume.slicing(3 - rows - columns)
        _, rows, columns = slicing.axes
        array = values.reshape((*values.shape, 1)[:3])
        image = slicing.cut(array)[0]
        ends = [(length - 1, 0) if i in slicing.flipped else (0, length - 1) for i, length in enumerate(array.shape)]
        place = Place(slicing, (volume.affine @ np.array([*ends, (1, 1)]))[:3].T)
    else:
        image = values.reshape(values.shape[columns], values.shape[rows]).T
    return Picture(image, stated_spacing(zooms[rows] * volume.unit, zooms[columns] * volume.unit), place)
