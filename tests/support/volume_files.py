"""Files of one volume in many forms."""

from pathlib import Path

import nibabel
import numpy as np
import SimpleITK


def write_nifti(file: Path, volume: np.ndarray, affine: np.ndarray, order=(0, 1, 2), flipped=()) -> None:
    """Save "x y z …", whose index `affine` maps to millimeters, with its axes in another order and some reversed."""
    matrix = np.zeros((4, 4))
    matrix[3, 3] = 1
    for place, axis in enumerate(order):
        backwards = axis in flipped
        matrix[axis, place] = -1 if backwards else 1
        matrix[axis, 3] = volume.shape[axis] - 1 if backwards else 0
    stored = np.flip(volume, flipped).transpose(*order, *range(3, volume.ndim))
    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(stored, affine @ matrix), file)


def write_itk(file: Path, volume: np.ndarray, affine: np.ndarray) -> None:
    """Save "x y z" as NRRD or MetaImage."""
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(volume.transpose(2, 1, 0)))
    lps = np.diag([-1, -1, 1, 1]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    file.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(image, str(file))
