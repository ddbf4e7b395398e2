"""One prediction of one case: a label map or probabilities, on the grid of the image."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from stochseg.data.readers import arrays, itk, nifti
from stochseg.data.readers.nifti import Volume
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.gathering.cases import Member
from stochseg.inference.gathering.grids import array_shape, on_grid
from stochseg.inference.result import FloatArray
from stochseg.inference.stacks import Stack
from stochseg.limits import MAX_CLASSES
from stochseg.models.io import read_json
from stochseg.types.samples import check_probabilities

MASK = 255
"""The foreground of masks that were saved as pictures."""
AGREEMENT = 0.99
"""Part of the voxels with a foreground label at which an archive must agree with the label map next to it."""

PLANS = "plans.json"
TURNING = "NibabelIOWithReorient"
"""nnU-Net's reader that turns images to RAS."""


@dataclass(frozen=True)
class Map:
    """A prediction. labels: "s h w"; probabilities: "l s h w" float32, which sum to 1; one of them may be None."""

    labels: npt.NDArray[np.int64] | None
    probabilities: FloatArray | None = None

    @property
    def most_probable(self) -> npt.NDArray[np.int64]:
        """The label map "s h w"."""
        if self.labels is not None:
            return self.labels
        assert self.probabilities is not None
        likely: npt.NDArray[np.int64] = self.probabilities.argmax(0)
        return likely

    @property
    def num_classes(self) -> int:
        """The number of classes that the prediction needs."""
        labels = 0 if self.labels is None else int(self.labels.max()) + 1
        return max(labels, 0 if self.probabilities is None else len(self.probabilities))


def read_map(member: Member, stack: Stack, kind: str) -> Map:
    """Read a prediction and turn it to the grid of its image.

    Args:
        member: The prediction.
        stack: The image.
        kind: See `GatherOptions.kind`.

    Raises:
        UserError: It cannot be read, has another grid, or contains neither labels nor probabilities.
    """
    found = _read_file(member.file, stack, kind)
    if member.archive is None:
        return found
    if found.labels is None:
        raise UserError(f"{member.file}: expected the label map of {member.archive.name}, got probabilities")
    return Map(found.labels, _read_archive(member.archive, stack, found.labels))


def _read_file(file: Path, stack: Stack, kind: str) -> Map:
    name, where = file.name.lower(), str(file)
    if name.endswith(arrays.SUFFIXES):
        key, values = arrays.read_array(file)
        if key in ("probabilities", "softmax"):
            return Map(None, _read_archive(file, stack, None))
        return _read_plain_array(values, stack, kind, where)
    if name.endswith((*nifti.SUFFIXES, *itk.SUFFIXES)):
        if stack.lattice is None:
            raise UserError(f"{where}: the image is a picture without a place in space, expected PNG, TIFF or .npy")
        read = nifti.read_volume if name.endswith(nifti.SUFFIXES) else itk.read_volume
        volume = read(file, where)
        if not volume.is_placed:
            raise UserError(f"{where}: its affine does not place the voxels in space; correct it")
        slices = on_grid(volume, stack, where)
        while slices.ndim > 4 and slices.shape[3] == 1:
            slices = slices[..., 0, :]
    else:
        if stack.lattice is not None:
            raise UserError(f"{where}: the image is a volume, expected NIfTI, NRRD, MetaImage or .npy, got a picture")
        values = Tree(file.parent).labels(file.name)
        slices = _like_image(values, stack.values.shape[1:3], where)[None]
    return _interpret(slices, kind, where)


def _read_plain_array(values: Pixels, stack: Stack, kind: str, where: str) -> Map:
    """An array in the order of the image file: "h w" of a picture, "x y z" of NIfTI; labels come first or last."""
    size = stack.values.shape[1:3] if stack.lattice is None else array_shape(stack)
    axes = len(size)
    if values.shape[-axes:] == size and values.ndim == axes + 1 and values.shape[:axes] != size:
        values = np.moveaxis(values, 0, -1)
    values = _like_image(values, size, where)
    return _interpret(values[None] if stack.lattice is None else stack.lattice.slicing.cut(values), kind, where)


def _like_image(values: Pixels, size: tuple[int, ...], where: str) -> Pixels:
    if values.shape[: len(size)] != size or values.ndim > len(size) + 1:
        raise UserError(
            f"{where}: expected the size {'×'.join(map(str, size))} of the image, got shape {values.shape}; predict on "
            "the grid of the image, or resample the prediction to it"
        )
    return values


def _interpret(slices: Pixels, kind: str, where: str) -> Map:
    """Labels "s h w", or probabilities "s h w" of the foreground or "s h w l" of all labels."""
    if slices.ndim == 4 and slices.shape[-1] == 1:
        slices = slices[..., 0]
    if slices.dtype.kind in "ui" and kind == "probabilities":
        if slices.dtype.kind == "i" or slices.dtype.itemsize > 2:
            raise UserError(
                f"{where}: expected probabilities as floats in 0..1, or as unsigned integers of 8 or 16 bits, whose "
                f"highest value is 1, got {slices.dtype}; convert them"
            )
        if slices.max() == 1:
            raise UserError(
                f"{where}: expected probabilities as integers up to {np.iinfo(slices.dtype).max}, got zeros and ones; "
                "save them as floats, or gather them as labels"
            )
        slices = slices / np.float32(np.iinfo(slices.dtype).max)
    whole = slices.dtype.kind in "bui" or (slices.ndim == 3 and bool((slices == np.rint(slices)).all()))
    if kind == "labels" or (kind == "auto" and whole):
        if slices.ndim != 3 or not whole:
            got = f"{slices.shape[-1]} values per pixel" if slices.ndim > 3 else "fractions"
            raise UserError(
                f"{where}: expected one whole number per pixel as label, got {got}; save label maps without colors, or "
                "pass --kind probabilities"
            )
        return Map(_labels(slices, where))
    soft = slices.astype(np.float32)
    if np.isnan(soft).any():
        raise UserError(f"{where}: expected labels or probabilities, got NaN (not a number); predict again")
    if soft.ndim == 3:
        if not (soft.min() >= 0 and soft.max() <= 1):  # NaN fails, too
            raise UserError(
                f"{where}: expected labels, or probabilities of the foreground in 0..1, got values from "
                f"{soft.min():.4g} to {soft.max():.4g}; apply a sigmoid"
            )
        return Map(None, np.stack([1 - soft, soft]))
    return Map(None, _checked(np.moveaxis(soft, -1, 0), where))


def _labels(slices: Pixels, where: str) -> npt.NDArray[np.int64]:
    low, high = slices.min(), slices.max()
    if not 0 <= low <= high < MAX_CLASSES:
        raise UserError(f"{where}: expected labels from 0 to {MAX_CLASSES - 1}, got {low} to {high}; is it an image?")
    labels = slices.astype(np.int64)
    is_mask = labels.max() == MASK and not ((labels != 0) & (labels != MASK)).any()
    return np.where(labels == MASK, 1, labels) if is_mask else labels


def _checked(soft: FloatArray, where: str) -> FloatArray:
    """Probabilities "l s h w"; pixels that nnU-Net cropped away, with zeros for all labels, become background."""
    soft[0][soft.sum(0) == 0] = 1
    check_probabilities(torch.from_numpy(soft), where, axis=0)
    return soft.clip(0, 1)  # rounded values may be slightly outside


# --- archives of nnU-Net ---------------------------------------------------------------------------------


def _read_archive(file: Path, stack: Stack, labels: npt.NDArray[np.int64] | None) -> FloatArray:
    """Probabilities "l z y x" that nnU-Net saved: axes in the order of SimpleITK, or after its reader turned them.

    Args:
        file: The archive. The .pkl next to it is not read: it could run code.
        stack: The image.
        labels: The label map next to it, "s h w", which decides between the two orders of the voxels; where it agrees
            with both, plans.json decides.
    """
    _, values = arrays.read_array(file, ("probabilities", "softmax"))
    if values.ndim != 4 or values.dtype.kind != "f":
        raise UserError(f'{file}: expected probabilities "l z y x" of nnU-Net, got shape {values.shape} {values.dtype}')
    checked = [_checked(each, str(file)) for each in _orders(values.astype(np.float32), stack, file)]
    if _is_turned(file.parent):
        checked.reverse()
    if labels is None:
        return checked[0]
    scores = [_agreement(each, labels) for each in checked]
    best = int(np.argmax(scores))  # the first of equal ones, such as those of an empty label map
    if scores[best] < AGREEMENT:
        raise UserError(
            f"{file}: the most probable labels agree with the label map next to it at {scores[best]:.0%} of the "
            "foreground only, so its axes are in an unknown order, or one of the two is of another model; gather the "
            "label maps alone (remove the .npz), or predict again with --save_probabilities"
        )
    return checked[best]


def _is_turned(folder: Path) -> bool:
    """Whether nnU-Net's plans next to its predictions name the reader that turns images to RAS."""
    with suppress(UserError):
        return read_json(folder / PLANS).get("image_reader_writer") == TURNING
    return False


def _orders(values: FloatArray, stack: Stack, file: Path) -> list[FloatArray]:
    """The probabilities "l z y x" as "l s h w", in each of the ways in which nnU-Net may have ordered the voxels."""
    if stack.lattice is None:
        size = stack.values.shape[1:3]
        return [np.moveaxis(_like_image(np.moveaxis(values[:, 0], 0, -1), size, str(file)), -1, 0)[:, None].copy()]
    turned, shape = values.transpose(3, 2, 1, 0), array_shape(stack)  # "x y z l"
    affine, orientations = stack.lattice.affine, require("nibabel", "medical", str(file)).orientations
    to_ras = affine @ orientations.inv_ornt_aff(orientations.io_orientation(affine), shape)
    found = []
    for placed in (affine, to_ras):
        with suppress(UserError):  # the other order, or none of them, fits
            slices = on_grid(Volume(turned, placed, None, stack.lattice.unit), stack, str(file))
            found.append(np.ascontiguousarray(np.moveaxis(slices, -1, 0)))
    if not found:
        raise UserError(
            f'{file}: expected probabilities "l z y x" of {shape[::-1]} voxels like the image, got shape '
            f"{values.shape}; gather archives with the images that nnU-Net segmented"
        )
    return found


def _agreement(soft: FloatArray, labels: npt.NDArray[np.int64]) -> float:
    likely = soft.argmax(0)
    either = (likely != 0) | (labels != 0)
    return float((likely == labels)[either].mean()) if either.any() else 1.0
