"""Volumes of any format in one order: "d h w", whatever the order in the file.

Axial slices follow each other to the head, their rows to the back and their columns to the left; coronal ones to the
back, with rows to the feet; sagittal ones to the right, with rows to the feet and columns to the back. This is how the
slices of NIfTI and DICOM are shown everywhere in this package.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stochseg.data.readers import itk, nifti
from stochseg.data.readers.formats import compact
from stochseg.data.readers.nifti import Plane, Slicing, Volume
from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.series import read_series
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.types import Spacing

SUFFIXES = (*nifti.SUFFIXES, *itk.SUFFIXES)
SAME = 0.1
"""Part of the smallest spacing by which voxels of one grid may differ in position: headers are rounded."""


@dataclass(frozen=True)
class Scan:
    """A volume "d h w", or "d h w c" with channels.

    affine: slice, row and column to millimeters, "4 4": x to the right, y to the front, z to the head.
    """

    values: Pixels
    affine: npt.NDArray[np.float64]

    @property
    def spacing(self) -> Spacing:
        """Millimeters between slices, rows and columns; see `nifti.slice_spacing`."""
        return nifti.slice_spacing(self.affine, (0, 1, 2))

    def describe(self) -> str:
        """Size, spacing and position of the grid, for error messages."""
        size = "×".join(map(str, self.values.shape[:3]))
        spacing = "×".join(f"{mm:.3g}" for mm in self.spacing)
        first = ", ".join(f"{mm:.1f}" for mm in self.affine[:3, 3])
        return f"{size} voxels of {spacing} mm, the first at ({first})"

    def matches(self, other: Scan) -> bool:
        """Whether two scans have their voxels at the same places."""
        if self.values.shape[:3] != other.values.shape[:3]:
            return False
        corners = np.array([[*corner, 1] for corner in itertools.product(*((0, n - 1) for n in self.values.shape[:3]))])
        apart = np.linalg.norm(((self.affine - other.affine) @ corners.T)[:3], axis=0)
        return bool(apart.max() <= SAME * min(self.spacing))


def read_volume(tree: Tree, names: Sequence[str]) -> Volume:
    """Read the volume of one file, or of the files of a DICOM series.

    Raises:
        UserError: It cannot be read, is a 2-D image, or is not placed in space.
    """
    where = tree.where(names[0])
    if names[0].lower().endswith(PICTURES):
        raise UserError(f"{where} is a picture, expected a volume: {', '.join(SUFFIXES)} or a folder of DICOM slices")
    if names[0].lower().endswith(nifti.SUFFIXES):
        volume = nifti.read_volume(tree.path / names[0] if tree.is_folder else tree.read(names[0]), where)
    elif not tree.is_folder:
        raise UserError(f"{where}: of a zip, only NIfTI volumes can be read; unpack it")
    elif names[0].lower().endswith(itk.SUFFIXES):
        volume = itk.read_volume(tree.path / names[0], where)
    else:
        volume = _series_volume(tree, names)
    values = volume.values
    if values.ndim == 5 and values.shape[3] == 1:  # NIfTI stores channels as the fifth axis, too
        values = values[..., 0, :]
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim not in (3, 4) or values.size == 0:
        raise UserError(f"{where}: expected a volume, got shape {volume.values.shape}")
    if not volume.is_placed:
        raise UserError(f"{where}: its affine does not place the voxels in space; correct it")
    return Volume(values, volume.affine, volume.header, volume.unit)


def _series_volume(tree: Tree, names: Sequence[str]) -> Volume:
    try:
        series = read_series([tree.path / name for name in names])
    except UserError as error:  # may name a slice without its folder
        folder = tree.where(names[0].rpartition("/")[0])
        raise UserError(f"{error}" if folder in str(error) else f"{folder}: {error}") from None
    if series.affine is None:
        raise UserError(f"{tree.where(names[0])} has no position in space, expected the slices of a volume")
    return Volume(np.moveaxis(series.values, (0, 1, 2), (2, 1, 0)), series.affine)


def orient(volume: Volume, plane: Plane, where: str) -> Scan:
    """Turn a volume into slices of a plane by its affine. Voxels are moved, not interpolated."""
    try:
        slicing = volume.slicing(plane)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    affine = volume.affine @ index_map(slicing, volume.values.shape)
    affine[:3] *= volume.unit
    return Scan(compact(slicing.cut(volume.values), where), affine)


def index_map(slicing: Slicing, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the matrix "4 4" from slice, row and column to the index of the array."""
    matrix = np.zeros((4, 4))
    matrix[3, 3] = 1
    for place, axis in enumerate(slicing.axes):
        backwards = axis in slicing.flipped
        matrix[axis, place] = -1 if backwards else 1
        matrix[axis, 3] = shape[axis] - 1 if backwards else 0
    return matrix


def natural_plane(volume: Volume) -> Plane:
    """Return the plane in which a volume was sliced: its thickest axis is perpendicular to it, else axial."""
    axis = volume.slicing().axis
    return next(plane for plane in nifti.PLANES if volume.slicing(plane).axis == axis)
