"""The metrics as torchmetrics classes, thin over the pure functions: update per batch, compute over the data set.

All states are sums, so that any number of processes gives the result of one. All classes are built from `num_classes`;
further keywords go to `torchmetrics.Metric`. The module is imported only when one of its names is used: torchmetrics
takes longer to import than torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.extras import repair_torchvision
from stochseg.metrics import calibration, confusion, functional
from stochseg.metrics.checks import ArrayLike, as_tensor

repair_torchvision()  # torchmetrics imports torchvision if it is installed

from torchmetrics import Metric  # noqa: E402


class _SumMetric(Metric):
    """A metric whose states are sums."""

    full_state_update = False
    is_differentiable = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes

    def _add_sum(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


class _MeanMetric(_SumMetric):
    """A mean over all images or pixels so far."""

    total: Tensor
    seen: Tensor

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self._add_sum("total", dtype=torch.float64)
        self._add_sum("seen")

    def compute(self) -> Tensor:
        """Compute the mean so far, a scalar."""
        if int(self.seen) == 0:
            raise UserError(f"{type(self).__name__}: nothing was counted; call update before compute")
        return self.total / self.seen

    def _add(self, images: Tensor) -> None:
        """Add the scores "b" of a batch of images."""
        self.total += images.sum()
        self.seen += len(images)


class GeneralizedEnergyDistance(_MeanMetric):
    """Mean over images of `ged`.

    Args:
        num_classes: l, background included.
        unbiased: leave out the pairs of a sample with itself.

    Example:
        >>> metric = GeneralizedEnergyDistance(num_classes=2)
        >>> metric.update(torch.tensor([[[1, 1, 0, 0], [1, 0, 0, 0]]]), torch.tensor([[[1, 1, 0, 0]]]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, num_classes: int, *, unbiased: bool = False, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.unbiased = unbiased

    def update(
        self,
        samples: ArrayLike,
        raters: ArrayLike,
        weights: ArrayLike | None = None,
        rater_weights: ArrayLike | None = None,
    ) -> None:
        """Add images: samples "b n *space" int, raters "b k *space" int, weights "b n", rater_weights "b k"."""
        scores = functional.ged(
            samples, raters, self.num_classes, weights=weights, rater_weights=rater_weights, unbiased=self.unbiased
        )
        self._add(scores)


class HungarianMatchedIoU(_MeanMetric):
    """Mean over images of `hm_iou`."""

    higher_is_better = True

    def update(self, samples: ArrayLike, raters: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Add images: samples "b n *space" int, raters "b k *space" int, weights "b n"."""
        self._add(functional.hm_iou(samples, raters, self.num_classes, weights=weights))


class SampleDiversity(_MeanMetric):
    """Mean over images of `diversity`. Neither high nor low is good: it should equal that of the raters.

    Args:
        num_classes: l, background included.
        unbiased: leave out the pairs of a sample with itself.
    """

    higher_is_better = None

    def __init__(self, num_classes: int, *, unbiased: bool = False, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.unbiased = unbiased

    def update(self, samples: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Add images: samples "b n *space" int, weights "b n"."""
        self._add(functional.diversity(samples, self.num_classes, weights=weights, unbiased=self.unbiased))


class BrierScore(_MeanMetric):
    """Brier score over all pixels and raters of the data set that are not void."""

    higher_is_better = False

    def update(self, mean: ArrayLike, raters: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Add images: mean "b l *space" probabilities, raters "b k *space" int, mask "b k *space" bool."""
        total, counted = calibration.brier_sums(_with_classes(mean, self.num_classes), raters, mask)
        self.total += total.sum()
        self.seen += counted.sum()


class ExpectedCalibrationError(_SumMetric):
    """Top-label calibration error over all pixels and raters of the data set that are not void.

    Args:
        num_classes: l, background included.
        bins: number of bins of probability.
    """

    higher_is_better = False
    count: Tensor
    confidence_sum: Tensor
    correct_sum: Tensor

    def __init__(self, num_classes: int, *, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self._add_sum("count", bins)
        self._add_sum("confidence_sum", bins, dtype=torch.float64)
        self._add_sum("correct_sum", bins)

    def update(self, mean: ArrayLike, raters: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Add images: mean "b l *space" probabilities, raters "b k *space" int, mask "b k *space" bool."""
        mean = _with_classes(mean, self.num_classes)
        bins = self._bins() + calibration.calibration_bins(mean, raters, len(self.count), mask)
        self.count, self.confidence_sum, self.correct_sum = bins.count, bins.confidence_sum, bins.correct_sum

    def compute(self) -> Tensor:
        """Compute the error so far, a scalar."""
        return calibration.ece(self._bins())

    def _bins(self) -> calibration.CalibrationBins:
        return calibration.CalibrationBins(self.count, self.confidence_sum, self.correct_sum)


class MeanIoU(_SumMetric):
    """Mean IoU of the data-set confusion matrix, over the classes that occur.

    Args:
        num_classes: l, background included.
        ignore: target pixels with this label are left out.
    """

    higher_is_better = True
    confusion: Tensor

    def __init__(self, num_classes: int, *, ignore: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.ignore = ignore
        self._add_sum("confusion", num_classes, num_classes)

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add images: prediction and target "b *space" int."""
        self.confusion += confusion.confusion_matrix(prediction, target, self.num_classes, self.ignore)

    def compute(self) -> Tensor:
        """Compute the mean IoU so far, a scalar."""
        return confusion.miou(self.confusion)


METRICS: dict[str, type[Metric]] = {
    "ged": GeneralizedEnergyDistance,
    "hm_iou": HungarianMatchedIoU,
    "diversity": SampleDiversity,
    "miou": MeanIoU,
    "ece": ExpectedCalibrationError,
    "brier": BrierScore,
}


def _with_classes(mean: ArrayLike, num_classes: int) -> Tensor:
    """Convert the mean and check its number of labels."""
    mean = as_tensor("mean", mean)
    if mean.ndim > 1 and mean.shape[1] != num_classes:
        raise UserError(
            f'mean "b l *space": expected l = {num_classes} as the metric, got shape {tuple(mean.shape)}; '
            "build the metric with the model's num_classes"
        )
    return mean
