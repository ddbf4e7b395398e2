"""Arrays of predictions on the grid of their image, whatever the order of their voxels."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.nifti import Volume
from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError
from stochseg.inference.stacks import Lattice, Stack

SAME = 0.1
"""Part of a voxel by which positions of one grid may differ: headers are rounded."""


def array_shape(stack: Stack) -> tuple[int, int, int]:
    """The shape "x y z" of the array that a stack with a place in space was cut from."""
    assert stack.lattice is not None
    shape = [0, 0, 0]
    for axis, length in zip(stack.lattice.slicing.axes, stack.values.shape, strict=False):
        shape[axis] = length
    return shape[0], shape[1], shape[2]


def on_grid(volume: Volume, stack: Stack, where: str) -> Pixels:
    """Turn the values "x y z …" of a volume into slices "s h w …" of an image, without resampling.

    Raises:
        UserError: Its voxels are not those of the image.
    """
    lattice = stack.lattice
    assert lattice is not None
    shape = array_shape(stack)
    values: Pixels = volume.values.reshape((*volume.values.shape, *[1] * (3 - volume.values.ndim)))
    move = np.linalg.inv(_millimeters(lattice.affine, lattice.unit)) @ _millimeters(volume.affine, volume.unit)
    turn = np.rint(move[:3, :3])
    order = np.abs(turn).argmax(0)  # axis of the image of each axis of the volume
    if sorted(order.tolist()) != [0, 1, 2] or (np.abs(turn).sum(0) != 1).any():
        raise _another_grid(volume, lattice, shape, where)
    backwards = tuple(i for i in range(3) if turn[order[i], i] < 0)
    exact = np.eye(4)
    exact[:3, :3] = turn
    for i in backwards:
        exact[order[i], 3] = values.shape[i] - 1
    corners = np.array([[*c, 1] for c in itertools.product(*((0, n - 1) for n in values.shape[:3]))]).T
    if (
        tuple(values.shape[i] for i in np.argsort(order)) != shape
        or np.abs(((move - exact) @ corners)[:3]).max() > SAME
    ):
        raise _another_grid(volume, lattice, shape, where)
    turned = np.moveaxis(np.flip(values, backwards), (0, 1, 2), tuple(order))
    return lattice.slicing.cut(turned)


def _millimeters(affine: npt.NDArray[np.float64], unit: float) -> npt.NDArray[np.float64]:
    return np.diag([unit, unit, unit, 1.0]) @ affine


def _another_grid(volume: Volume, lattice: Lattice, shape: tuple[int, ...], where: str) -> UserError:
    own = _describe(_millimeters(volume.affine, volume.unit), volume.values.shape[:3])
    image = _describe(_millimeters(lattice.affine, lattice.unit), shape)
    return UserError(
        f"{where}: its grid is {own}; that of the image is {image}; predict on the grid of the image, or resample the "
        "prediction to it"
    )


def _describe(affine: npt.NDArray[np.float64], shape: tuple[int, ...]) -> str:
    size, spacing = "×".join(map(str, shape)), np.linalg.norm(affine[:3, :3], axis=0)
    first = ", ".join(f"{mm:.1f}" for mm in affine[:3, 3])
    return f"{size} voxels of {'×'.join(f'{mm:.3g}' for mm in spacing)} mm, the first at ({first})"
