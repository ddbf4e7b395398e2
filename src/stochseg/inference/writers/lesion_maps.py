"""Maps of a whole scan with all of its lesions: NIfTI, and DICOM SEG with one segment per lesion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.inference.lesions import Segmented
from stochseg.inference.result import FloatArray, LabelArray, label_type
from stochseg.inference.stacks import Stack
from stochseg.inference.writers.dicom_seg import class_segments, segmentation
from stochseg.inference.writers.nifti import volume_image
from stochseg.models import StochasticSegmenter


def write_lesion_maps(
    folder: Path, scan: Stack, segmented: Sequence[Segmented], model: StochasticSegmenter
) -> list[str]:
    """Write fused.nii.gz, lesions.nii.gz, foreground.nii.gz and, for DICOM, lesions.dcm; returns their names."""
    assert scan.lattice is not None
    fused, numbers, foreground = _combine(scan, segmented)
    maps = {"fused": fused, "lesions": numbers, "foreground": foreground}
    for name, stack in maps.items():
        volume_image(stack, name, scan.lattice).to_filename(folder / f"{name}.nii.gz")
    if not scan.headers:
        return [f"{name}.nii.gz" for name in maps]
    lesions_seg(scan, segmented, model).save_as(folder / "lesions.dcm")
    return [*(f"{name}.nii.gz" for name in maps), "lesions.dcm"]


def _combine(scan: Stack, segmented: Sequence[Segmented]) -> tuple[LabelArray, LabelArray, FloatArray]:
    """The class, the number of the lesion, and the probability of any foreground class at each voxel, "s h w".

    Where parts overlap, the lesion with the higher probability of foreground counts.
    """
    size = scan.values.shape[:3]
    fused = np.zeros(size, segmented[0].result.fused.dtype)
    numbers = np.zeros(size, label_type(len(segmented) + 1))
    foreground = np.zeros(size, np.float32)
    for number, each in enumerate(segmented, start=1):
        labels, probability = each.result.fused, 1 - each.result.mean[:, 0]
        own = (labels != 0) & ((numbers[each.part] == 0) | (probability > foreground[each.part]))
        fused[each.part][own] = labels[own]
        numbers[each.part][own] = number
        np.maximum(foreground[each.part], probability, out=foreground[each.part])
    return fused, numbers, foreground


def lesions_seg(scan: Stack, segmented: Sequence[Segmented], model: StochasticSegmenter) -> Any:
    """Build a DICOM Segmentation of the fused maps, with one segment per lesion and class.

    It refers to the slices with foreground only, so that scans of many slices and lesions stay small.
    """
    shown = np.zeros(len(scan.values), bool)
    for each in segmented:
        shown[each.part[0]] |= (each.result.fused != 0).any((1, 2))
    if not shown.any():
        shown[segmented[0].part[0]] = True
    headers = [header for header, kept in zip(scan.headers, shown, strict=True) if kept]
    segments = [segment for each in segmented for segment in class_segments(model.info, each.lesion.id)]
    masks = _segment_masks(scan, segmented, shown, model.info.num_classes - 1)
    return segmentation(masks, headers, segments, segmented[0].result.labels.shape[1], model.name)


def _segment_masks(
    scan: Stack, segmented: Sequence[Segmented], shown: npt.NDArray[np.bool_], classes: int
) -> LabelArray:
    """Number of the segment at each voxel of some slices, "s h w"; one mask per segment, "s h w m", if any overlap."""
    size, count = (int(shown.sum()), *scan.values.shape[1:3]), classes * len(segmented)
    rows = np.cumsum(shown) - 1
    numbers = np.zeros(size, label_type(count + 1))
    for i, each in enumerate(segmented):
        for labels, index in zip(each.result.fused, range(*each.part[0].indices(len(shown))), strict=True):
            part = numbers[rows[index]][each.part[1:]]
            if (part[labels != 0] != 0).any():
                return _overlapping_masks(size, segmented, shown, classes)
            part[labels != 0] = labels[labels != 0].astype(numbers.dtype) + i * classes
    return numbers


def _overlapping_masks(
    size: tuple[int, ...], segmented: Sequence[Segmented], shown: npt.NDArray[np.bool_], classes: int
) -> LabelArray:
    masks = np.zeros((*size, classes * len(segmented)), np.uint8)
    rows = np.cumsum(shown) - 1
    for i, each in enumerate(segmented):
        for labels, index in zip(each.result.fused, range(*each.part[0].indices(len(shown))), strict=True):
            for kind in range(classes if shown[index] else 0):
                masks[rows[index]][(*each.part[1:], i * classes + kind)] = labels == kind + 1
    return masks
