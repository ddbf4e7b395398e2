"""Images and volumes as stacks of 2-D slices with a position in space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.readers import arrays, itk, nifti
from stochseg.data.readers.formats import compact
from stochseg.data.readers.nifti import Plane, Slicing
from stochseg.data.readers.pictures import Pixels, open_quietly
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError

Axis: TypeAlias = int | Plane | Slicing | None
"""Where slices of a NIfTI volume are cut."""
MAX_CHANNELS = 16
"""Of a picture in an array: with more, it is taken for a volume."""
MAX_DPI = 1e8
"""PNG stores pixels per meter in 32 bits."""


@dataclass(frozen=True)
class Lattice:
    """Position of the voxels of a volume in space.

    affine: array index (x, y, z) to millimeters, "4 4": x to the right, y to the front, z to the head, as in NIfTI;
    slicing: how the array is cut into slices; header: the NIfTI header of the volume, if it has one; unit: millimeters
    per unit of the affine.
    """

    affine: npt.NDArray[np.float64]
    slicing: Slicing = field(default_factory=Slicing)
    header: Any = None
    unit: float = 1.0

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimeters between slices, rows and columns; see `nifti.slice_spacing`."""
        slices, rows, columns = nifti.slice_spacing(self.affine, self.slicing.axes)
        return slices * self.unit, rows * self.unit, columns * self.unit

    def part(self, start: Sequence[int], size: Sequence[int], whole: Sequence[int]) -> Lattice:
        """The lattice of a part of the volume; start, size and whole size as slices, rows, columns."""
        first = np.eye(4)
        for i, axis in enumerate(self.slicing.axes):
            first[axis, 3] = whole[i] - start[i] - size[i] if axis in self.slicing.flipped else start[i]
        affine = self.affine @ first
        if self.header is None:
            return replace(self, affine=affine)
        header = self.header.copy()
        for form in ("sform", "qform"):
            code = int(header[f"{form}_code"])
            if code:
                getattr(header, f"set_{form}")(affine, code)
        return replace(self, affine=affine, header=header)

    @property
    def is_oriented(self) -> bool:
        """Whether the file states its orientation."""
        return nifti.states_orientation(self.header)

    @property
    def voxel(self) -> float:
        """Volume of a voxel in cubic millimeters."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) * self.unit**3)


@dataclass(frozen=True)
class Stack:
    """Slices of one size.

    values: raw intensities, "s h w" or "s h w c"; lattice: None for a picture; alpha: whether the last channel is
    opacity, not an intensity; dpi: dots per inch (x, y), if a picture states them; headers: of DICOM, one per slice;
    pixel: millimeters (row, column) of a pixel that the OME metadata of a picture state.
    """

    values: Pixels
    lattice: Lattice | None = None
    alpha: bool = False
    dpi: tuple[float, float] | None = None
    headers: tuple[Any, ...] = ()
    pixel: tuple[float, float] | None = None

    def part(self, start: tuple[int, int, int], size: tuple[int, int, int]) -> Stack:
        """A part of a volume, in its place in space, without DICOM headers."""
        values = self.values[tuple(slice(a, a + length) for a, length in zip(start, size, strict=True))]
        lattice = None if self.lattice is None else self.lattice.part(start, size, self.values.shape)
        return Stack(values, lattice, self.alpha)


def read_picture(file: Path) -> Stack:
    """Read PNG, JPEG, TIFF and other pictures with their stored intensities, exactly as training reads them."""
    picture = Tree(file.parent).picture(file.name)
    alpha, dpi = False, None
    try:
        with open_quietly(file) as image:
            extra = getattr(image, "tag_v2", {}).get(338) or ()  # 1, 2: alpha; 0: another channel
            alpha = image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or bool({1, 2}.intersection(np.atleast_1d(extra)))
            dpi = image.info.get("dpi")
    except Exception:  # Pillow does not open TIFFs of many channels
        pass
    pixel = picture.spacing if file.name.lower().endswith((".tif", ".tiff")) else None
    if pixel is not None:
        dpi = (25.4 / pixel[1], 25.4 / pixel[0])
    return Stack(picture.values[None], None, alpha, valid_dpi(dpi), pixel=pixel)


def valid_dpi(dpi: Any) -> tuple[float, float] | None:
    """Return dots per inch (x, y) if they are positive and fit into the 32 bits that PNG and TIFF have for them."""
    if dpi is None or len(dpi) != 2 or not all(0 < float(v) < MAX_DPI for v in dpi):
        return None
    return float(dpi[0]), float(dpi[1])


def read_array(file: Path) -> Stack:
    """Read a .npy file, or the only array of an .npz, as a picture "h w" or "h w c"."""
    _, values = arrays.read_array(file)
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[-1] <= MAX_CHANNELS):
        raise UserError(
            f'expected a picture "h w" or "h w c" of up to {MAX_CHANNELS} channels, got shape {values.shape}; an array '
            "does not state the geometry of a volume: save it as NIfTI"
        )
    return Stack(compact(values, str(file))[None])


def read_volume(file: Path, axis: Axis = None) -> Stack:
    """Read NIfTI, NRRD or MetaImage as slices along `axis`: see `nifti.Volume.slicing`, or a slicing that is known."""
    read = nifti.read_volume if file.name.lower().endswith(nifti.SUFFIXES) else itk.read_volume
    volume = read(file, str(file))
    values = volume.values
    values = values.astype(np.float32) if values.dtype.itemsize > 4 else values
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    values = values.reshape(values.shape + (1,) * (3 - values.ndim))
    if values.ndim > 4:
        raise UserError(f"expected a volume, with or without channels, got shape {values.shape}; split it")
    if values.size == 0:
        raise UserError(f"the volume is empty, shape {values.shape}")
    if not volume.is_placed:
        stated = np.round(volume.affine, 3).tolist()
        raise UserError(f"its affine does not place the voxels in space: {stated}; correct it")
    slicing = axis if isinstance(axis, Slicing) else volume.slicing(axis)
    header = None if volume.header is None else volume.header.copy()
    return Stack(slicing.cut(values), Lattice(volume.affine, slicing, header, volume.unit))
