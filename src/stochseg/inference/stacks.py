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
    """Position of the voxels of a volume in space."""

    affine: npt.NDArray[np.float64]
    """Array index (x, y, z) to millimeters, "4 4": x to the right, y to the front, z to the head, as in NIfTI."""
    axis: int = 2
    """Axis of the array along which slices follow each other. Of the other two, the first is the width of a slice."""
    header: Any = None
    """The NIfTI header of the volume, if it has one."""
    unit: float = 1.0
    """Millimeters per unit of the affine."""

    def stacked(self, volume: Pixels) -> Pixels:
        """Turn an array "x y z …" into a stack "s h w …"."""
        across, down = self._slice_axes
        return np.moveaxis(volume, (self.axis, down, across), (0, 1, 2))

    def place(self, stack: Pixels) -> Pixels:
        """Turn a stack "s h w …" into an array "x y z …"."""
        across, down = self._slice_axes
        return np.moveaxis(stack, (0, 1, 2), (self.axis, down, across))

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimeters between slices, rows and columns."""
        lengths = np.linalg.norm(self.affine[:3, :3], axis=0) * self.unit
        across, down = self._slice_axes
        return float(lengths[self.axis]), float(lengths[down]), float(lengths[across])

    @property
    def voxel(self) -> float:
        """Volume of a voxel in cubic millimeters."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) * self.unit**3)

    @property
    def _slice_axes(self) -> tuple[int, int]:
        across, down = (i for i in range(3) if i != self.axis)
        return across, down


@dataclass(frozen=True)
class Stack:
    """Slices of one size."""

    values: Pixels
    """Raw intensities, "s h w" or "s h w c"."""
    lattice: Lattice | None = None
    """None for a picture."""
    alpha: bool = False
    """Whether the last channel is opacity, not an intensity."""
    dpi: tuple[float, float] | None = None
    """Dots per inch (x, y), if a picture states them."""
    headers: tuple[Any, ...] = ()
    """DICOM headers, one per slice."""


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
