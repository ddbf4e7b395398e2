"""How far the mean probabilities can be believed: calibration error and Brier score, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics.checks import check_aligned, check_dimensions, check_kind, check_range


@dataclass(frozen=True)
class CalibrationBins:
    """What calibration error needs of any number of images; bins of several images add up with `+`.

    count: int64, labels of pixels a bin, each as often as raters saw the pixel; confidence_sum: float64, the
    probability they were given; correct_sum: int64, how often a rater chose them.
    """

    count: Tensor
    confidence_sum: Tensor
    correct_sum: Tensor

    def __add__(self, other: CalibrationBins) -> CalibrationBins:
        if self.count.shape != other.count.shape:
            raise UserError(
                f"calibration bins: {len(self.count)} bins cannot be added to {len(other.count)}; "
                "use one number of bins for all images"
            )
        return CalibrationBins(
            self.count + other.count,
            self.confidence_sum + other.confidence_sum,
            self.correct_sum + other.correct_sum,
        )


def calibration_bins(mean: Tensor, raters: Tensor, bins: int = 15, mask: Tensor | None = None) -> CalibrationBins:
    """Sort pixels into equal-width bins of their top probability; every rater's label of a pixel counts.

    mean: "b l h w" probabilities; raters: "b k h w" int; mask: "b k h w" bool, True = counted.
    """
    raters, mask = _check_calibration(mean, raters, mask)
    confidence, label = mean.double().max(1)
    # All raters of a pixel share its bin, so they are counted first and binned once.
    return _binned(bins, confidence, mask.sum(1), ((raters == label[:, None]) & mask).sum(1))


def foreground_bins(
    mean: Tensor, raters: Tensor, bins: int = 10, mask: Tensor | None = None, at_least: float = 0.0
) -> CalibrationBins:
    """Sort every foreground label of every pixel by the probability it was given; a rater who chose it makes it right.

    mean: "b l h w" probabilities; raters: "b k h w" int; mask: "b k h w" bool, True = counted. Unlike
    `calibration_bins`, which knows the top label alone, this sees the doubtful pixels of a small class beside a large
    background. at_least: labels of a smaller probability are not counted, so that plain background does not hide them.
    """
    raters, mask = _check_calibration(mean, raters, mask)
    confidence = mean[:, 1:].double()
    likely = confidence >= at_least
    counted = mask.sum(1, keepdim=True) * likely
    correct = torch.zeros_like(counted)
    for label in range(1, mean.shape[1]):
        correct[:, label - 1] = (raters == label).sum(1)  # a rater who is not counted has label 0
    return _binned(bins, confidence, counted, correct * likely)


def ece(bins: CalibrationBins) -> Tensor:
    """Expected calibration error: Σ bins share · |accuracy − confidence|, a scalar."""
    total = bins.count.sum()
    if int(total) == 0:
        raise UserError("ece: the bins count no pixel; check the mask and that data was added")
    return (bins.correct_sum - bins.confidence_sum).abs().sum() / total


def brier(mean: Tensor, raters: Tensor, mask: Tensor | None = None) -> Tensor:
    """Brier score: Σ over labels of (p − [y = label])², averaged over pixels and raters, from 0 to 2.

    mean: "b l h w" probabilities; raters: "b k h w" int; mask: "b k h w" bool, True = counted.
    Returns "b", nan for an image of which nothing is counted.
    """
    total, counted = brier_sums(mean, raters, mask)
    return total / counted


def brier_sums(mean: Tensor, raters: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum of the Brier scores over pixels and raters, "b", and how many were counted, "b" int64."""
    raters, mask = _check_calibration(mean, raters, mask)
    mean = mean.double()
    # Expanding the square needs no one-hot: Σ p² − 2 p[y] + 1.
    score = mean.square().sum(1, keepdim=True) - 2 * mean.gather(1, raters) + 1
    return (score * mask).sum((1, 2, 3)), mask.sum((1, 2, 3))


def _binned(bins: int, confidence: Tensor, counted: Tensor, correct: Tensor) -> CalibrationBins:
    if bins < 1:
        raise UserError(f"bins: expected at least 1, got {bins}; 15 is customary")
    index = (confidence * bins).long().clamp(0, bins - 1).flatten()

    def binned(values: Tensor) -> Tensor:
        return values.new_zeros(bins).index_add_(0, index, values.flatten())

    return CalibrationBins(binned(counted), binned(confidence * counted), binned(correct))


def _check_calibration(mean: Tensor, raters: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check all three; returns the raters as int64 with 0 where not counted, and the mask in full."""
    check_dimensions("mean", "b l h w", mean)
    if not mean.is_floating_point():
        raise UserError(f'mean "b l h w": expected float probabilities, got {mean.dtype}; pass Samples.mean')
    # The tolerance is that of probabilities averaged in 16 bits.
    for what, values, low, high in (("values", mean, -0.01, 1.01), ("sums over l", mean.sum(1), 0.99, 1.01)):
        lowest, highest = (float(bound) for bound in values.aminmax())
        if not (low <= lowest and highest <= high):
            raise UserError(
                f'mean "b l h w": expected probabilities, got {what} from {lowest:g} to {highest:g}; '
                "turn logits into probabilities with softmax(1)"
            )
    check_dimensions("raters", "b k h w", raters)
    check_kind("raters", raters)
    check_aligned("mean", mean, "raters", raters)
    if mask is None:
        mask = torch.ones_like(raters, dtype=torch.bool)
    elif mask.shape != raters.shape or mask.dtype != torch.bool:
        raise UserError(
            f'mask "b k h w": expected torch.bool of shape {tuple(raters.shape)}, as the raters, got '
            f"{mask.dtype} of shape {tuple(mask.shape)}; give one value a rater and pixel, True = counted"
        )
    else:
        # A pixel that is not counted often carries a label of its own, such as 255.
        raters = raters.masked_fill(~mask, 0)
    check_range("raters", raters, mean.shape[1])
    return raters.long(), mask
