"""Metrics of stochastic segmentation: pure functions, and stateful torchmetrics classes over them."""

from __future__ import annotations

from stochseg.metrics._torchmetrics import Metric
from stochseg.metrics.calibration import (
    CalibrationBins,
    brier,
    brier_sums,
    calibration_bins,
    ece,
    foreground_bins,
)
from stochseg.metrics.functional import (
    IoUBlocks,
    confusion_matrix,
    diversity,
    diversity_from_iou,
    ged,
    ged_from_iou,
    hm_iou,
    hm_iou_from_iou,
    iou_blocks,
    iou_per_class,
    miou,
    pairwise_iou,
    without_void,
)
from stochseg.metrics.stateful import (
    BrierScore,
    ExpectedCalibrationError,
    GeneralizedEnergyDistance,
    HungarianMatchedIoU,
    MeanIoU,
    SampleDiversity,
)

METRICS: dict[str, type[Metric]] = {
    "ged": GeneralizedEnergyDistance,
    "hm_iou": HungarianMatchedIoU,
    "diversity": SampleDiversity,
    "miou": MeanIoU,
    "ece": ExpectedCalibrationError,
    "brier": BrierScore,
}

__all__ = [
    "METRICS",
    "BrierScore",
    "CalibrationBins",
    "ExpectedCalibrationError",
    "GeneralizedEnergyDistance",
    "HungarianMatchedIoU",
    "IoUBlocks",
    "MeanIoU",
    "SampleDiversity",
    "brier",
    "brier_sums",
    "calibration_bins",
    "confusion_matrix",
    "diversity",
    "diversity_from_iou",
    "ece",
    "foreground_bins",
    "ged",
    "ged_from_iou",
    "hm_iou",
    "hm_iou_from_iou",
    "iou_blocks",
    "iou_per_class",
    "miou",
    "pairwise_iou",
    "without_void",
]
