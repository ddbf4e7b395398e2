"""The metrics as torchmetrics classes, thin over the pure functions: update a batch, compute over the data set.

All states are sums, so that any number of processes gives the number of one. All classes are built from
`num_classes`; further keywords go to `torchmetrics.Metric`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics import calibration, functional
from stochseg.metrics._torchmetrics import Metric


class _MeanMetric(Metric):
    """A mean over all that was seen: the images, or the pixels."""

    full_state_update = False
    is_differentiable = False
    total: Tensor
    seen: Tensor

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """The mean so far, a scalar."""
        if int(self.seen) == 0:
            raise UserError(f"{type(self).__name__}: nothing was counted; call update before compute")
        return self.total / self.seen

    def _add(self, images: Tensor) -> None:
        """Add the scores "b" of a batch of images."""
        self.total += images.sum()
        self.seen += len(images)


class GeneralizedEnergyDistance(_MeanMetric):
    """Mean over images of `ged`, the published form or the unbiased one."""

    higher_is_better = False

    def __init__(self, num_classes: int, *, unbiased: bool = False, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.unbiased = unbiased

    def update(
        self,
        samples: Tensor,
        raters: Tensor,
        weights: Tensor | None = None,
        rater_weights: Tensor | None = None,
    ) -> None:
        """samples: "b n h w" int; raters: "b k h w" int; weights: "b n"; rater_weights: "b k"."""
        self._add(
            functional.ged(
                samples,
                raters,
                self.num_classes,
                weights=weights,
                rater_weights=rater_weights,
                unbiased=self.unbiased,
            )
        )


class HungarianMatchedIoU(_MeanMetric):
    """Mean over images of `hm_iou`."""

    higher_is_better = True

    def update(self, samples: Tensor, raters: Tensor, weights: Tensor | None = None) -> None:
        """samples: "b n h w" int; raters: "b k h w" int; weights: "b n"."""
        self._add(functional.hm_iou(samples, raters, self.num_classes, weights=weights))


class SampleDiversity(_MeanMetric):
    """Mean over images of `diversity`. Neither high nor low is good: it should equal that of the raters."""

    higher_is_better = None

    def __init__(self, num_classes: int, *, unbiased: bool = False, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.unbiased = unbiased

    def update(self, samples: Tensor, weights: Tensor | None = None) -> None:
        """samples: "b n h w" int; weights: "b n"."""
        self._add(functional.diversity(samples, self.num_classes, weights=weights, unbiased=self.unbiased))


class BrierScore(_MeanMetric):
    """Brier score over all counted pixels and raters of the data set."""

    higher_is_better = False

    def update(self, mean: Tensor, raters: Tensor, mask: Tensor | None = None) -> None:
        """mean: "b l h w" probabilities; raters: "b k h w" int; mask: "b k h w" bool, True = counted."""
        _check_labels(mean, self.num_classes)
        total, counted = calibration.brier_sums(mean, raters, mask)
        self.total += total.sum()
        self.seen += counted.sum()


class ExpectedCalibrationError(Metric):
    """Top-label calibration error over all counted pixels and raters of the data set."""

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    count: Tensor
    confidence_sum: Tensor
    correct_sum: Tensor

    def __init__(self, num_classes: int, *, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.add_state("count", torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("confidence_sum", torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("correct_sum", torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, mean: Tensor, raters: Tensor, mask: Tensor | None = None) -> None:
        """mean: "b l h w" probabilities; raters: "b k h w" int; mask: "b k h w" bool, True = counted."""
        _check_labels(mean, self.num_classes)
        bins = self._bins() + calibration.calibration_bins(mean, raters, len(self.count), mask)
        self.count, self.confidence_sum, self.correct_sum = bins.count, bins.confidence_sum, bins.correct_sum

    def compute(self) -> Tensor:
        """The error so far, a scalar."""
        return calibration.ece(self._bins())

    def _bins(self) -> calibration.CalibrationBins:
        return calibration.CalibrationBins(self.count, self.confidence_sum, self.correct_sum)


class MeanIoU(Metric):
    """Mean IoU of the data-set confusion matrix, over the classes that occur."""

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    confusion: Tensor

    def __init__(self, num_classes: int, *, ignore: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.ignore = ignore
        empty = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("confusion", empty, dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction, target: "b h w" int; target pixels equal to `ignore` are left out."""
        self.confusion += functional.confusion_matrix(prediction, target, self.num_classes, self.ignore)

    def compute(self) -> Tensor:
        """The mean IoU so far, a scalar."""
        return functional.miou(self.confusion)


def _check_labels(mean: Tensor, num_classes: int) -> None:
    if mean.ndim == 4 and mean.shape[1] != num_classes:
        raise UserError(
            f'mean "b l h w": expected l = {num_classes} as the metric, got shape {tuple(mean.shape)}; '
            "build the metric with the model's num_classes"
        )
