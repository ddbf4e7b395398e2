"""Images and volumes as stacks of 2-D slices with a position in space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from stochseg.data.readers import nifti
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError

MAX_DPI = 1e8
"""PNG stores pixels per meter in 32 bits."""


@dataclass(frozen=True)
class Lattice:
    """Position of the voxels of a volume in space.

    affine: array index (x, y, z) to millimeters, "4 4": x to the right, y to the front, z to the head, as in NIfTI;
    axis: of the array, along which slices follow each other; of the other two, the first is the width of a slice;
    header: the NIfTI header of the volume, if it has one; unit: millimeters per unit of the affine.
    """

    affine: npt.NDArray[np.float64]
    axis: int = 2
    header: Any = None
    unit: float = 1.0

    def stacked(self, volume: Pixels) -> Pixels:
        """Turn an array "x y z …" into a stack "s h w …"."""
        return np.moveaxis(volume, self._stack_axes, (0, 1, 2))

    def place(self, stack: Pixels) -> Pixels:
        """Turn a stack "s h w …" into an array "x y z …"."""
        return np.moveaxis(stack, (0, 1, 2), self._stack_axes)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimeters between slices, rows and columns."""
        lengths = np.linalg.norm(self.affine[:3, :3], axis=0) * self.unit
        slices, rows, columns = (float(lengths[i]) for i in self._stack_axes)
        return slices, rows, columns

    @property
    def voxel(self) -> float:
        """Volume of a voxel in cubic millimeters."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) * self.unit**3)

    @property
    def _stack_axes(self) -> tuple[int, int, int]:
        """Axes of the array that a stack has as slices, rows and columns."""
        across, down = (i for i in range(3) if i != self.axis)
        return self.axis, down, across


@dataclass(frozen=True)
class Stack:
    """Slices of one size.

    values: raw intensities, "s h w" or "s h w c"; lattice: None for a picture; alpha: whether the last channel is
    opacity, not an intensity; dpi: dots per inch (x, y), if a picture states them; headers: of DICOM, one per slice.
    """

    values: Pixels
    lattice: Lattice | None = None
    alpha: bool = False
    dpi: tuple[float, float] | None = None
    headers: tuple[Any, ...] = ()


def read_picture(file: Path) -> Stack:
    """Read PNG, JPEG, TIFF and other pictures with their stored intensities, exactly as training reads them."""
    picture = Tree(file.parent).picture(file.name)
    alpha, dpi = False, None
    try:
        with Image.open(file) as image:
            extra = getattr(image, "tag_v2", {}).get(338) or ()  # 1, 2: alpha; 0: another channel
            alpha = image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or bool({1, 2}.intersection(np.atleast_1d(extra)))
            dpi = image.info.get("dpi")
    except Exception:  # Pillow does not open TIFFs of many channels
        pass
    return Stack(picture.values[None], None, alpha, valid_dpi(dpi))


def valid_dpi(dpi: Any) -> tuple[float, float] | None:
    """Return dots per inch (x, y) if they are positive and fit into the 32 bits that PNG and TIFF have for them."""
    if dpi is None or len(dpi) != 2 or not all(0 < float(v) < MAX_DPI for v in dpi):
        return None
    return float(dpi[0]), float(dpi[1])


def read_nifti(file: Path, axis: int | None = None) -> Stack:
    """Read a NIfTI volume as slices along `axis` of its array: by default the one of length 1, or the last."""
    volume = nifti.read_volume(file, str(file))
    values, affine = volume.values, volume.affine
    values = values.astype(np.float32) if values.dtype.itemsize > 4 else values
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    values = values.reshape(values.shape + (1,) * (3 - values.ndim))
    if values.ndim > 4:
        raise UserError(f"expected a volume, with or without channels, got shape {values.shape}; split it")
    if values.size == 0:
        raise UserError(f"the volume is empty, shape {values.shape}")
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine)) == 0:
        raise UserError(f"its affine does not place the voxels in space: {np.round(affine, 3).tolist()}; correct it")
    thin = [i for i in range(3) if values.shape[i] == 1]
    axis = (thin[0] if len(thin) == 1 else 2) if axis is None else axis
    lattice = Lattice(affine, axis, volume.header.copy(), volume.unit)
    return Stack(lattice.stacked(values), lattice)
