"""Scans in Hounsfield units with a nodule, in several forms, and models that segment them."""

from pathlib import Path

import nibabel
import numpy as np
import torch
from torch import Tensor

from stochseg.models import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.sampling import Drawing, one_pass
from stochseg.types import DatasetInfo, Preparation
from tests.support.models import lively
from tests.support.oblique import expected_affine

UP_TO_8_BITS = {"normalization": {"mean": (127.5,), "std": (127.5,)}}


def ct(size=(12, 30, 28), center=(5, 14, 12), radius=(2.2, 4.0, 5.0), seed=0) -> np.ndarray:
    """Lung of about -800 HU with a nodule of 40 HU, "s h w"; all values are even, as `dicom_slice` stores them."""
    scan = np.random.default_rng(seed).normal(-800, 20, size)
    scan[nodule(size, center, radius)] = 40
    return (scan // 2 * 2).astype(np.int16)


def nodule(size, center, radius) -> np.ndarray:
    """Voxels of an ellipsoid."""
    distance = sum(((x - c) / r) ** 2 for x, c, r in zip(np.indices(size), center, radius, strict=True))
    return distance <= 1


def write_nifti(file: Path, scan: np.ndarray, order=(0, 1, 2), flipped=(), affine=None) -> Path:
    """A scan "s h w" as NIfTI of the same place as `write_volume`, its axes x, y, z permuted, and flipped then."""
    array = np.flip(scan.transpose(2, 1, 0).transpose(order), flipped)
    image = nibabel.Nifti1Image(
        array, (expected_affine() if affine is None else affine) @ to_original(array.shape, order, flipped)
    )
    image.header.set_sform(image.affine, code="scanner")
    image.to_filename(file)
    return file


def to_original(shape, order, flipped) -> np.ndarray:
    """Index of the permuted and flipped array to that of "x y z", "4 4"."""
    matrix = np.eye(4)
    matrix[:3, :3] = 0
    for new, old in enumerate(order):
        matrix[old, new] = -1 if new in flipped else 1
        matrix[old, 3] = shape[new] - 1 if new in flipped else 0
    return matrix


def facts(dims: int, **preparation) -> DatasetInfo:
    """Facts about data of one channel that were cropped to 16×16 and scaled slice by slice."""
    declared = Preparation.parse({"crop": (16, 16), "scale": "min-max", "units": "HU", **preparation})
    slices = {"slices": 4} if dims == 3 and declared.slices is None else {}
    return DatasetInfo(
        num_classes=2,
        image_channels=1,
        spatial_dims=dims,
        class_names=("background", "nodule"),
        preparation=declared.model_copy(update=slices),
        **UP_TO_8_BITS,
    )


def random_model(dims: int, focus: int | None = None, **preparation) -> StochasticSegmenter:
    """A `ccdm-fast` with random weights: its samples depend on every voxel that it sees."""
    return lively("ccdm-fast", 2, 1, facts(dims, **preparation), num_timesteps=20, evaluations=2, focus=focus)


def bright(dims: int, **preparation) -> "Bright":
    """The model `Bright` in a window of the lung: everything above -300 HU."""
    return Bright(facts(dims, **{"crop": (20, 20), "scale": "window", "window": (-1000, 400), **preparation}))


class Bright(StochasticSegmenter):
    """Segments everything that is brighter than the middle of the gray scale: the exact result is known."""

    name = "bright"
    seen: list[tuple[int, ...]]

    def __init__(self, info: DatasetInfo) -> None:
        super().__init__(info, SegmenterConfig())
        self.seen = []
        self.weight = torch.nn.Parameter(torch.zeros(1))  # a model has a device

    def drawing(self, image: Tensor, keys, options) -> Drawing:
        self.seen.append(tuple(image.shape))
        marked = (image[:, 0] > 0).float()
        return one_pass(lambda rows, noise: torch.stack([1 - marked, marked], 1)[rows.image])
