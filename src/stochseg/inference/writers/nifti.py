"""NIfTI volumes with the geometry of their input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stochseg._version import __version__
from stochseg.data.readers.pictures import Pixels
from stochseg.errors import unknown_name
from stochseg.extras import require
from stochseg.inference.result import PARTS, StackResult
from stochseg.inference.stacks import Lattice
from stochseg.inference.writers.base import Prediction
from stochseg.types import Samples

NIFTI_1_LIMIT = 32767
"""Voxels per axis that fit a NIfTI-1 header."""


def to_nifti(samples: Samples, part: str = "fused", lattice: Lattice | None = None) -> Any:
    """Convert samples to a nibabel image.

    Args:
        samples: Of one volume, or of a batch of images that are its slices, first to last.
        part: "fused" or "entropy" give an image "x y z", "labels" gives "x y z n" with all samples, "mean" gives
            "x y z l" with the mean probabilities.
        lattice: Place of the voxels in space; cubes of 1 mm without it.

    Returns:
        A `nibabel.Nifti1Image`, or a `Nifti2Image` where NIfTI-1 is too small or the input was NIfTI-2.

    Raises:
        UserError: The part is unknown or nibabel is not installed.

    >>> import stochseg, torch
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=4, multipliers=[1])
    >>> to_nifti(model.sample(torch.zeros(5, 1, 8, 16), 3), "labels").shape
    (16, 8, 5, 3)
    """
    return nifti_image(StackResult.from_samples(samples), part, lattice)


def nifti_image(result: StackResult, part: str, lattice: Lattice | None = None) -> Any:
    """Build the image of `to_nifti` from compact arrays."""
    volumes = [name for name in PARTS if name != "weights"]
    if part not in volumes:
        raise unknown_name("part", part, volumes)
    stack = getattr(result, part)
    stack = np.moveaxis(stack, 1, -1) if stack.ndim == 4 else stack
    return volume_image(stack, part, Lattice(np.eye(4)) if lattice is None else lattice)


def volume_image(stack: Pixels, name: str, lattice: Lattice) -> Any:
    """Build the image of a stack "s h w …" of integer labels or of floats; name: of what it shows."""
    nibabel = require("nibabel", "medical", "writing NIfTI")
    data = lattice.slicing.assemble(stack)
    large = isinstance(lattice.header, nibabel.Nifti2Header) or max(data.shape) > NIFTI_1_LIMIT
    kind = nibabel.Nifti2Image if large else nibabel.Nifti1Image
    header = None if lattice.header is None else kind.header_class.from_header(lattice.header, check=False)
    image = kind(data, lattice.affine, header, dtype=data.dtype)
    space = image.header.get_xyzt_units()[0]
    image.header.set_xyzt_units("mm" if space == "unknown" else space)
    image.header.set_intent("label" if data.dtype.kind == "u" else "none")
    image.header["descrip"] = f"stochseg {__version__} {name}".encode()
    image.header["cal_min"] = image.header["cal_max"] = 0  # the display range was that of the input's intensities
    if data.ndim == 4:
        image.header["pixdim"][4] = 1
    return image


def write_nifti(prediction: Prediction, file: Path, part: str) -> None:
    """Write one array of a volume as NIfTI."""
    nifti_image(prediction.result, part, prediction.stack.lattice).to_filename(file)
