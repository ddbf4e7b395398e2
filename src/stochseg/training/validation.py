"""Scores of a model on validation images during training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError
from stochseg.metrics import confusion_matrix, ged, without_void
from stochseg.models import StochasticSegmenter
from stochseg.training.config import ValidationConfig
from stochseg.types import Batch, Example, Samples

SHOWN = 4
"""Images that are kept for a picture."""


def validation_images(data: SegmentationData, count: int) -> list[int]:
    """Indices of evenly spaced images, without those that have no labeled pixel."""
    if len(data) == 0:
        raise UserError("the validation split is empty; add images of other patients to it (`val` of splits.json)")

    def is_labeled(i: int) -> bool:
        return data.info.ignore is None or len(data[i].rated(data.info.ignore).raters) > 0

    chosen = [i for i in spread(len(data), count) if is_labeled(i)]
    chosen = chosen or next(([i] for i in range(len(data)) if is_labeled(i)), [])
    if not chosen:
        raise UserError("validation: expected images with labeled pixels, got only void ones; choose other images")
    return chosen


def score_images(
    model: StochasticSegmenter, data: SegmentationData, images: Iterable[int], config: ValidationConfig
) -> tuple[float, Tensor, list[tuple[Example, Samples]]]:
    """Sample images and compare the samples with the raters.

    Returns:
        The sum of GED over the images, the confusion matrix of the fused maps, and the first images with their samples.
    """
    total, rows, ignore = 0.0, list[tuple[Example, Samples]](), data.info.ignore
    confusion = torch.zeros(model.num_classes, model.num_classes, dtype=torch.float64)
    n, evaluations = config.num_samples, config.evaluations
    for i in images:
        example = data[i].rated(ignore)
        samples = model.sample(example.image[None], n, evaluations=evaluations, allow_unusual_input=True).to("cpu")
        batch = Batch.collate([example], ignore)
        maps = without_void(samples.labels, batch.raters, batch.mask)
        total += ged(*maps, model.num_classes, weights=samples.weights).item()
        fused = samples.fused("mean")[0].expand_as(example.raters)
        confusion += confusion_matrix(fused, example.raters, model.num_classes, ignore)
        if len(rows) < SHOWN:
            rows.append((example, samples))
    return total, confusion, rows
