"""Compatibility of a model with data: the same classes and channels, and images normalized as the model expects."""

from __future__ import annotations

from torch import Tensor

from stochseg.data import SegmentationData
from stochseg.errors import UserError
from stochseg.models import StochasticSegmenter
from stochseg.types import DatasetInfo


def check_compatible(model: StochasticSegmenter, data: SegmentationData) -> None:
    """Raise a UserError if the data have other classes or image channels than the model."""
    if (data.info.num_classes, data.info.image_channels) != (model.num_classes, model.image_channels):
        raise UserError(
            f"the model {model.name!r} has {model.num_classes} classes and {model.image_channels} image channel(s), "
            f"the data have {data.info.num_classes} and {data.info.image_channels}; use data like those of the training"
        )


def match_normalization(image: Tensor, data: DatasetInfo, model: DatasetInfo) -> Tensor:
    """Normalize an image of the data as the model expects it; other data may have another normalization."""
    if data.normalization == model.normalization:
        return image
    return model.normalization(data.normalization.inverse(image))
