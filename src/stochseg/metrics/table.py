"""The table of metrics: title, meaning, direction, format and reduction of every number that stochseg reports.

Commands, reports and figures take names and formats from here. `METRIC_TABLE` maps keys to a `MetricInfo`, in the order
of display. GED, HM-IoU and diversity are families: `ged` stands for any number of samples, `ged_16` for 16. A metric
of one class has the name of the class behind a slash: `iou/road`.

Example:
    >>> info = metric_info("ged_16")
    >>> info.title, info.short, info.better, info.reduction
    ('GED, n = 16', 'GED_16', 'lower', 'mean')
    >>> format_metric("ged_16", 0.21234)
    '0.2123'
    >>> sort_metrics({"miou": 0.8, "ged_100": 0.18, "id": "a", "ged_16": 0.21})
    ['ged_16', 'ged_100', 'miou']
    >>> metric_info("iou/road").title
    'IoU of the fused map: road'
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from stochseg.errors import unknown_name
from stochseg.metrics.calibration import LIKELY

Better = Literal["lower", "higher", ""]
Reduction = Literal["mean", "confusion matrix", "calibration bins", "sums", "mean frequencies", "median", ""]


@dataclass(frozen=True)
class MetricInfo:
    """One row of the table.

    Attributes:
        key: name in files and code, such as "ged_16".
        title: name in tables and reports.
        short: column header where space is scarce.
        better: "lower" or "higher"; "" if neither is better.
        reduction: how the value of a data set is made of those of its images: "mean"; from the sum of their confusion
            matrices, calibration bins or pixels ("sums"); from "mean frequencies". Of repeated measurements "median";
            "" for a single number.
        meaning: one sentence for a reader who does not know the metric.
        digits: decimals; for times (unit "s" or "min") significant digits.
        unit: "" if there is none.
    """

    key: str
    title: str
    short: str
    better: Better
    reduction: Reduction
    meaning: str
    digits: int = 4
    unit: str = ""


FAMILIES = ("ged", "hm_iou", "diversity")
"""Metrics of a number of samples n, with keys such as ged_16."""
FUSIONS = ("miou_mean", "miou_vote")
"""Metrics of maps fused from n samples, with keys such as miou_mean_10."""

# fmt: off
_ROWS = (
    MetricInfo("ged", "GED", "GED", "lower", "mean",
               "Distance between the distributions of samples and raters; 0 is perfect."),
    MetricInfo("hm_iou", "HM-IoU", "HM-IoU", "higher", "mean",
               "Overlap of samples and raters after the best matching; 1 is perfect."),
    MetricInfo("diversity", "diversity", "diversity", "", "mean",
               "Mean distance (1 − IoU) of two samples, a sample and itself included."),
    MetricInfo("ged_unbiased", "GED, unbiased in n", "GED, unbiased", "lower", "mean",
               "Estimate of the GED of infinitely many samples."),
    MetricInfo("diversity_unbiased", "diversity, unbiased in n", "diversity, unbiased", "", "mean",
               "Mean distance (1 − IoU) of two different samples; comparable with two raters."),
    MetricInfo("miou", "mIoU of the fused map", "mIoU", "higher", "confusion matrix",
               "Overlap of the most probable map with each rater, averaged over classes."),
    MetricInfo("miou_mean", "mIoU, fused by mean", "mIoU, mean", "higher", "confusion matrix",
               "As mIoU, with the map of highest mean probability of the first n samples."),
    MetricInfo("miou_vote", "mIoU, fused by vote", "mIoU, vote", "higher", "confusion matrix",
               "As mIoU, with the majority vote of the first n samples."),
    MetricInfo("iou", "IoU of the fused map", "IoU", "higher", "confusion matrix",
               "Overlap of the most probable map with each rater, of one class."),
    MetricInfo("dice", "Dice score of the fused map", "Dice", "higher", "confusion matrix",
               "Overlap as twice the common pixels divided by the sum of both areas, of one class."),
    MetricInfo("risk", "risk: 1 − Dice of the fused map", "risk", "lower", "mean",
               "One minus the Dice score of the most probable map with a rater, averaged over foreground classes."),
    MetricInfo("confidence", "confidence: expected Dice of the fused map", "confidence", "", "mean",
               "Dice score of the most probable map with a sample, of the least certain class."),
    MetricInfo("aurc", "area under the risk-coverage curve (AURC)", "AURC", "lower", "",
               "Mean risk of the most confident images, averaged over how many are kept."),
    MetricInfo("ece", "calibration error (ECE)", "ECE", "lower", "calibration bins",
               "Mean gap between the top probability and its frequency among raters; 0 is perfect."),
    MetricInfo("ece_foreground", f"ECE of foreground labels of {LIKELY:.0%} or more", "ECE, foreground", "lower",
               "calibration bins", "Calibration error of the likely foreground labels, without plain background."),
    MetricInfo("brier", "Brier score", "Brier", "lower", "sums",
               "Squared error of the probabilities, from 0 (perfect) to 2."),
    MetricInfo("ged_truth_unbiased", "GED to the known truth, unbiased in n", "GED to truth", "lower", "mean",
               "Estimate of the GED of infinitely many samples to the known distribution."),
    MetricInfo("mode_tv", "mode frequencies, total variation to the truth", "mode TV", "lower", "mean",
               "Distance of the sampled to the true frequencies of the modes, per image; 0 is perfect."),
    MetricInfo("mode_tv_overall", "mode frequencies averaged over images, total variation to the truth",
               "mode TV, overall", "lower", "mean frequencies",
               "Distance of the sampled to the true frequencies, both averaged over images; 0 is perfect."),
    MetricInfo("mode_iou", "IoU with the nearest true mode", "mode IoU", "higher", "mean",
               "Overlap of a sample with the true mode nearest to it; 1 is perfect."),
    MetricInfo("seconds_per_image", "seconds per image", "s per image", "lower", "mean",
               "Wall-clock time of all samples of an image.", unit="s"),
    MetricInfo("seconds_per_sample", "seconds per sample", "s per sample", "lower", "mean",
               "Wall-clock time of an image divided by its number of samples.", unit="s"),
    MetricInfo("evaluations_per_sample", "network evaluations per sample", "evaluations", "", "mean",
               "Calls of the network for one sample.", 0),
    MetricInfo("evaluations", "network evaluations per sample", "evaluations", "", "mean",
               "Calls of the network for one sample.", 0),
    MetricInfo("evaluations_all_samples", "maps through the network", "maps", "", "",
               "Label maps through the network for all samples; a shared call counts once.", 0),
    MetricInfo("seconds", "seconds", "s", "lower", "median",
               "Wall-clock time of all samples of one image.", unit="s"),
    MetricInfo("core_seconds", "core seconds", "core s", "lower", "median",
               "CPU time of all samples of one image, summed over cores.", unit="s"),
    MetricInfo("core_seconds_all_steps", "core seconds with all steps", "all steps", "lower", "",
               "CPU time of all samples if all steps of the diffusion were taken.", unit="s"),
    MetricInfo("gflop", "GFLOP", "GFLOP", "lower", "",
               "Floating-point operations of all samples of one image, in billions.", 3),
    MetricInfo("gemm_share", "fraction of matrix-product speed", "GEMM", "higher", "",
               "Operations per second divided by those of a large float32 matrix product.", 3),
    MetricInfo("peak_megabytes", "rise of memory", "MB", "lower", "",
               "Rise of memory while sampling.", 1, "MB"),
    MetricInfo("process_megabytes", "memory of the process", "process MB", "lower", "",
               "Highest memory of the whole process while sampling.", 1, "MB"),
    MetricInfo("parameters", "parameters", "parameters", "", "",
               "Number of weights of the model.", 0),
    MetricInfo("train_steps", "steps trained", "steps trained", "", "",
               "Optimizer steps of the training.", 0),
    MetricInfo("train_minutes", "minutes trained", "minutes trained", "", "",
               "Wall-clock time of the training.", unit="min"),
)
# fmt: on

METRIC_TABLE: dict[str, MetricInfo] = {row.key: row for row in _ROWS}


def metric_info(key: str) -> MetricInfo:
    """Look up a metric by its key; a family with a count, such as ged_16, is named by it.

    Args:
        key: such as "miou" or "ged_16".

    Returns:
        Its row of the table.

    Raises:
        UserError: if the key is unknown.
    """
    found = _parse(key)
    if found is None:
        raise unknown_name("metric", key, METRIC_TABLE)
    info, n, name = METRIC_TABLE[found[0]], found[1], class_of(key)
    if n:
        info = replace(info, title=f"{info.title}, n = {n}", short=f"{info.short}_{n}")
    return replace(info, key=key, title=f"{info.title}: {name}" if name else info.title)


def class_of(key: str) -> str:
    """The class that a key names, such as road of iou/road; "" for a metric of all classes."""
    return key.partition("/")[2]


def count_of(key: str) -> int:
    """The number of samples that a key names, such as 16 of ged_16; 0 for others."""
    found = _parse(key)
    return 0 if found is None else found[1]


def _parse(key: str) -> tuple[str, int] | None:
    """The row of the table and the number of samples, 0 if the key does not name it; None if the key is unknown."""
    base = key.partition("/")[0]
    if base in METRIC_TABLE:
        return base, 0
    family, _, count = base.rpartition("_")
    return (family, int(count)) if family in FAMILIES + FUSIONS and count.isdecimal() else None


def format_metric(key: str, value: float | None, *, digits: int | None = None) -> str:
    """Format a value by the table, "" for None and nan.

    Args:
        key: of the metric.
        value: of the metric.
        digits: instead of those of the table.

    Returns:
        The value as text, without its unit.

    Raises:
        UserError: if the key is unknown.
    """
    info = metric_info(key)
    if value is None or math.isnan(value):
        return ""
    kind = "g" if info.unit in ("s", "min") else "f"
    return f"{value:.{info.digits if digits is None else digits}{kind}}"


def sort_metrics(keys: Iterable[str]) -> list[str]:
    """Select the keys that are metrics, in the order of the table; a family is ordered by n, classes as they come.

    Args:
        keys: such as those of a row of results.

    Returns:
        The keys that the table has.
    """
    order = list(METRIC_TABLE)
    places = {key: (order.index(found[0]), found[1]) for key in keys if (found := _parse(key)) is not None}
    return sorted(places, key=places.__getitem__)
