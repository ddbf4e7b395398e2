"""Scores of a model on validation images during training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stochseg.data import SegmentationData
from stochseg.metrics import confusion_matrix, ged, without_void
from stochseg.models import StochasticSegmenter
from stochseg.training.config import ValidationConfig
from stochseg.types import Batch, Example, Samples

SHOWN = 4
"""Images that are kept for a picture."""


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
