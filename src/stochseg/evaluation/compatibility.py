"""Compatibility of a model with data: the same classes and channels, and images normalized as the model expects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError
from stochseg.memory import physical_memory
from stochseg.models import StochasticSegmenter
from stochseg.models.intensities import describe_unusual
from stochseg.types import VOID, DatasetInfo, Samples

SCORED_BYTES = 20
"""Bytes per voxel of a sample while its volume is scored: its labels, a copy without void, and an indicator."""
CHECKED_IMAGES = 4
"""Images whose intensities are checked; a single unusual one is no reason to stop."""


def check_compatible(model: StochasticSegmenter, data: SegmentationData) -> None:
    """Raise a UserError if the data have other axes, classes or image channels than the model, or only images unlike
    those of its training. A model may have one label more if its name is `VOID`: see `without_void_label`."""
    kinds = {2: "images", 3: "volumes"}
    if data.info.spatial_dims != model.info.spatial_dims:
        raise UserError(
            f"the model {model.name!r} takes {kinds[model.info.spatial_dims]}, the data are "
            f"{kinds[data.info.spatial_dims]}; use data like those of the training"
        )
    same = data.info.num_classes == model.num_classes
    with_void = model.info.class_names == (*data.info.class_names, VOID)
    if not (same or with_void) or data.info.image_channels != model.image_channels:
        raise UserError(
            f"the model {model.name!r} has {model.num_classes} classes and {model.image_channels} image channel(s), "
            f"the data have {data.info.num_classes} and {data.info.image_channels}; use data like those of the training"
        )
    images = (match_normalization(data[i].image, data.info, model.info) for i in spread(len(data), CHECKED_IMAGES))
    problems = [describe_unusual(image, model.info) for image in images]
    if problems and all(problems):
        raise UserError(f"{data.info.name}: image 0: {problems[0]}; use data like those of the training")


def check_volume_memory(data: SegmentationData, chosen: Sequence[int], n: int) -> None:
    """Raise a UserError if n samples of one of these volumes, which are scored together, do not fit into memory."""
    space = getattr(data, "space", None)
    if data.info.spatial_dims == 2 or space is None:
        return
    largest = max((tuple(space(i)) for i in chosen), key=math.prod)
    needed, available = SCORED_BYTES * n * math.prod(largest), physical_memory()
    if needed > available:
        shape = "×".join(map(str, largest))
        raise UserError(
            f"{n} samples of a volume of {shape} voxels need {needed / 2**30:.0f} GB of memory, the machine has "
            f"{available / 2**30:.0f} GB; use fewer --samples, or data of smaller volumes"
        )


def match_normalization(image: Tensor, data: DatasetInfo, model: DatasetInfo) -> Tensor:
    """Normalize an image of the data as the model expects it; other data may have another normalization."""
    if data.normalization == model.normalization:
        return image
    return model.normalization(data.normalization.inverse(image))


def without_void_label(samples: Samples, data: DatasetInfo) -> Samples:
    """Remove the label `VOID` that a model has and the data do not.

    It is left out of the mean before any arg-max, as by the CCDM authors. Where a single sample is void, it takes the
    most probable class of the mean.
    """
    if samples.num_classes == data.num_classes:
        return samples
    mean = samples.mean[:, : data.num_classes]
    mean = mean / mean.sum(1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    labels = torch.where(samples.labels < data.num_classes, samples.labels, mean.argmax(1, keepdim=True))
    return replace(samples, labels=labels, mean=mean, info=data)
