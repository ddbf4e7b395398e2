"""Metrics of stochastic segmentation: pure functions, and stateful torchmetrics classes over them.

The functions take tensors, numpy arrays or lists; label maps have any number of spatial dimensions, "b n *space". The
classes and `METRICS` are imported on first use, so that importing this package costs little more than torch.
`METRIC_TABLE` names and explains every number that stochseg reports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochseg.metrics.calibration import (
    CalibrationBins,
    brier,
    brier_sums,
    calibration_bins,
    ece,
    foreground_bins,
    vote_bins,
)
from stochseg.metrics.confusion import confusion_matrix, dice_per_class, iou_per_class, miou
from stochseg.metrics.functional import diversity, diversity_from_iou, ged, ged_from_iou, hm_iou, hm_iou_from_iou
from stochseg.metrics.iou import IoUBlocks, class_iou_blocks, iou_blocks, pairwise_iou, without_void
from stochseg.metrics.scaling import fit_scaling, scale_probabilities
from stochseg.metrics.selective import RiskCoverage, fused_dice, risk_coverage
from stochseg.metrics.table import METRIC_TABLE, MetricInfo, format_metric, metric_info, sort_metrics

if TYPE_CHECKING:
    from stochseg.metrics.stateful import (
        METRICS,
        BrierScore,
        ExpectedCalibrationError,
        GeneralizedEnergyDistance,
        HungarianMatchedIoU,
        MeanIoU,
        SampleDiversity,
    )

__all__ = [
    "METRICS",
    "METRIC_TABLE",
    "BrierScore",
    "CalibrationBins",
    "ExpectedCalibrationError",
    "GeneralizedEnergyDistance",
    "HungarianMatchedIoU",
    "IoUBlocks",
    "MeanIoU",
    "MetricInfo",
    "RiskCoverage",
    "SampleDiversity",
    "brier",
    "brier_sums",
    "calibration_bins",
    "class_iou_blocks",
    "confusion_matrix",
    "dice_per_class",
    "diversity",
    "diversity_from_iou",
    "ece",
    "fit_scaling",
    "foreground_bins",
    "format_metric",
    "fused_dice",
    "ged",
    "ged_from_iou",
    "hm_iou",
    "hm_iou_from_iou",
    "iou_blocks",
    "iou_per_class",
    "metric_info",
    "miou",
    "pairwise_iou",
    "risk_coverage",
    "scale_probabilities",
    "sort_metrics",
    "vote_bins",
    "without_void",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # the names that are not imported above
        return getattr(import_module("stochseg.metrics.stateful"), name)
    raise AttributeError(f"module 'stochseg.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
