"""Scores of a whole data set, from sums over its images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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

Sums = tuple[Tensor, CalibrationBins, CalibrationBins, Tensor]
"""Confusion matrix, calibration bins of all labels and of the foreground, Brier sums; they add up over images."""


class DataScores:
    """Collects images and computes the metrics that are not means over images.

    Args:
        info: of the data.
        fused: numbers of samples; the maps fused from the first n of them, by mean and by vote, are scored.
    """

    def __init__(self, info: DatasetInfo, fused: Sequence[int]) -> None:
        self.info, self.sums = info, list[Sums]()
        empty = torch.zeros(info.num_classes, info.num_classes, dtype=torch.int64)
        self.fused = {f"miou_{rule}_{n}": empty.clone() for n in fused for rule in ("mean", "vote")}

    def add(self, drawn: Mapping[int, Samples], example: Example, batch: Batch) -> None:
        """Add an image. drawn: its samples, by their number; batch: the example as a batch of one."""
        out = drawn[max(drawn)]
        self.sums.append(
            (
                self._confusion(out.fused("mean"), example),
                calibration_bins(out.mean, batch.raters, mask=batch.mask),
                foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY),
                torch.stack(brier_sums(out.mean, batch.raters, mask=batch.mask)),
            )
        )
        for n, part in drawn.items() if self.fused else ():
            self.fused[f"miou_mean_{n}"] += self._confusion(part.fused("mean"), example)
            self.fused[f"miou_vote_{n}"] += self._confusion(part.fused("vote"), example)

    def _confusion(self, fused: Tensor, example: Example) -> Tensor:
        raters = example.raters
        return confusion_matrix(fused[0].expand_as(raters), raters, self.info.num_classes, self.info.ignore)

    def metrics(self) -> dict[str, float]:
        """Compute the metrics of all images so far, and those of each class if there are more than two."""
        confusions, bins, foreground, brier = zip(*self.sums, strict=True)
        confusion = torch.stack(confusions).sum(0)
        found = {"miou": miou(confusion).item(), "ece": ece(sum(bins[1:], start=bins[0])).item()}
        found |= {key: miou(counted).item() for key, counted in self.fused.items()}
        likely = sum(foreground[1:], start=foreground[0])
        if likely.count.sum() > 0:  # undefined if the model marks nothing anywhere
            found["ece_foreground"] = ece(likely).item()
        total, count = torch.cat(brier, dim=1).sum(1).tolist()
        return found | {"brier": total / count} | self._class_metrics(confusion)

    def _class_metrics(self, confusion: Tensor) -> dict[str, float]:
        if self.info.num_classes == 2:
            return {}
        scores = {"iou": iou_per_class(confusion).tolist(), "dice": dice_per_class(confusion).tolist()}
        found: dict[str, float] = {}
        for key, values in scores.items():
            for name, value in zip(class_names(self.info), values, strict=True):
                if not math.isnan(value):  # the class occurs
                    found[f"{key}/{name}"] = value
        return found


def class_names(info: DatasetInfo) -> tuple[str, ...]:
    """Names of the classes in the keys of metrics, all different."""
    return info.names if len(set(info.names)) == info.num_classes else tuple(map(str, range(info.num_classes)))
