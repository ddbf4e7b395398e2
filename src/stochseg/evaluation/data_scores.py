"""Scores of a whole data set, from sums over its images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stochseg.metrics import (
    CalibrationBins,
    brier_sums,
    calibration_bins,
    confusion_matrix,
    dice_per_class,
    ece,
    foreground_bins,
    iou_per_class,
    miou,
)
from stochseg.metrics.calibration import LIKELY
from stochseg.types import Batch, DatasetInfo, Example, Samples

FUSED_COUNTS = (1, 5, 10)
"""Numbers of samples that are fused into one map, for data with a single annotation."""
RULES: tuple[Literal["mean", "vote"], ...] = ("mean", "vote")


@dataclass(frozen=True)
class ImageSums:
    """Sums over the pixels of an image, which add up over images.

    confusion: matrix of the fused map; bins, foreground: calibration of all labels and of the foreground; brier: sums;
    fused: confusion matrices of the maps fused from the first n samples, by the key of their metric.
    """

    confusion: Tensor
    bins: CalibrationBins
    foreground: CalibrationBins
    brier: Tensor
    fused: Mapping[str, Tensor]


def image_sums(drawn: Mapping[int, Samples], example: Example, info: DatasetInfo, *, fused: bool) -> ImageSums:
    """Sum up an image.

    Args:
        drawn: its samples, by their number.
        example: the image.
        info: of the data.
        fused: whether the maps fused from the samples of each number, by mean and by vote, are scored.
    """
    out, batch = drawn[max(drawn)], Batch.collate([example], info.ignore)
    maps = {f"miou_{rule}_{n}": part.fused(rule) for n, part in drawn.items() for rule in RULES} if fused else {}
    return ImageSums(
        _confusion(out.fused("mean"), example, info),
        calibration_bins(out.mean, batch.raters, mask=batch.mask),
        foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY),
        torch.stack(brier_sums(out.mean, batch.raters, mask=batch.mask)),
        {key: _confusion(labels, example, info) for key, labels in maps.items()},
    )


def _confusion(fused: Tensor, example: Example, info: DatasetInfo) -> Tensor:
    return confusion_matrix(fused[0].expand_as(example.raters), example.raters, info.num_classes, info.ignore)


def data_metrics(images: Sequence[ImageSums], info: DatasetInfo) -> dict[str, float]:
    """Compute the metrics that are not means over images, and those of each class if there are more than two."""
    confusion = torch.stack([image.confusion for image in images]).sum(0)
    first, others = images[0], images[1:]
    bins = sum((image.bins for image in others), start=first.bins)
    likely = sum((image.foreground for image in others), start=first.foreground)
    found = {"miou": miou(confusion).item(), "ece": ece(bins).item()}
    for key in first.fused:
        found[key] = miou(torch.stack([image.fused[key] for image in images]).sum(0)).item()
    if likely.count.sum() > 0:  # undefined if the model marks nothing anywhere
        found["ece_foreground"] = ece(likely).item()
    total, count = torch.cat([image.brier for image in images], dim=1).sum(1).tolist()
    return found | {"brier": total / count} | _class_metrics(confusion, info)


def _class_metrics(confusion: Tensor, info: DatasetInfo) -> dict[str, float]:
    if info.num_classes == 2:
        return {}
    scores = {"iou": iou_per_class(confusion).tolist(), "dice": dice_per_class(confusion).tolist()}
    found: dict[str, float] = {}
    for key, values in scores.items():
        for name, value in zip(class_names(info), values, strict=True):
            if not math.isnan(value):  # the class occurs
                found[f"{key}/{name}"] = value
    return found


def class_names(info: DatasetInfo) -> tuple[str, ...]:
    """Names of the classes in the keys of metrics, all different."""
    return info.names if len(set(info.names)) == info.num_classes else tuple(map(str, range(info.num_classes)))
