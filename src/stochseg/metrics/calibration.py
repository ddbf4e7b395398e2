"""Calibration of the mean probabilities: expected calibration error and Brier score, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError, is_integer
from stochseg.metrics import checks
from stochseg.metrics.checks import ArrayLike

LIKELY = 0.01
"""Foreground labels of a smaller probability do not count in the reported calibration error of the foreground."""


@dataclass(frozen=True)
class CalibrationBins:
    """Sums per bin of probability, from which the calibration error follows; bins of several images add up with `+`.

    Attributes:
        count: int64, predictions in the bin, once per rater who labeled the pixel.
        confidence_sum: float64, sum of their probabilities.
        correct_sum: int64, how many of them agree with the rater.
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
            self.count + other.count, self.confidence_sum + other.confidence_sum, self.correct_sum + other.correct_sum
        )


def calibration_bins(
    mean: ArrayLike, raters: ArrayLike, bins: int = 15, mask: ArrayLike | None = None
) -> CalibrationBins:
    """Sort pixels into equal-width bins of their top probability; the label of every rater counts.

    Args:
        mean: "b l *space" probabilities, such as `Samples.mean`.
        raters: "b k *space" int.
        bins: number of bins.
        mask: "b k *space" bool, False = void; None if nothing is void.

    Returns:
        The bins, summed over all images.

    Raises:
        UserError: if the arguments do not fit each other or `mean` has no probabilities.

    Example:
        >>> mean = [[[0.9, 0.6], [0.1, 0.4]]]  # two pixels, labels 0 and 1
        >>> ece(calibration_bins(mean, [[[0, 1]]]))
        tensor(0.3500, dtype=torch.float64)
    """
    mean, raters, mask = _check_calibration(mean, raters, mask)
    confidence, label = mean.double().max(1)
    # All raters of a pixel share its bin, so they are counted first and binned once.
    return _binned(bins, confidence, mask.sum(1), ((raters == label[:, None]) & mask).sum(1))


def foreground_bins(
    mean: ArrayLike, raters: ArrayLike, bins: int = 10, mask: ArrayLike | None = None, at_least: float = 0.0
) -> CalibrationBins:
    """Sort every foreground label of every pixel by its probability; it is correct for each rater who chose it.

    Unlike `calibration_bins`, which sees only the top label, this sees the doubtful pixels of a small class next to a
    large background.

    Args:
        mean: "b l *space" probabilities, such as `Samples.mean`.
        raters: "b k *space" int.
        bins: number of bins.
        mask: "b k *space" bool, False = void; None if nothing is void.
        at_least: leave out labels of a smaller probability, so that plain background does not hide the others.

    Returns:
        The bins, summed over all images.

    Raises:
        UserError: if the arguments do not fit each other or `mean` has no probabilities.

    Example:
        >>> foreground_bins([[[0.9, 0.3], [0.1, 0.7]]], [[[0, 1]]], bins=2).count
        tensor([1, 1])
    """
    mean, raters, mask = _check_calibration(mean, raters, mask)
    confidence = mean[:, 1:].double()
    likely = confidence >= at_least
    counted = mask.sum(1, keepdim=True) * likely
    correct = torch.zeros_like(counted)
    for label in range(1, mean.shape[1]):
        correct[:, label - 1] = (raters == label).sum(1)  # a void pixel has label 0
    return _binned(bins, confidence, counted, correct * likely)


def vote_bins(probabilities: Tensor, votes: Tensor, bins: int = 10, at_least: float = 0.0) -> CalibrationBins:
    """Sort foreground labels as `foreground_bins` does, of pixels whose raters were counted before.

    Args:
        probabilities: "p l", of some pixels.
        votes: "p l", the (weighted) number of raters who gave the pixel this label.
        bins: number of bins.
        at_least: leave out labels of a smaller probability.

    Returns:
        The bins, whose counts are float64 because votes have weights.

    Example:
        >>> ece(vote_bins(torch.tensor([[0.1, 0.9], [0.7, 0.3]]), torch.tensor([[1, 3], [4, 0]])))
        tensor(0.2250, dtype=torch.float64)
    """
    confidence, counted = probabilities[:, 1:].double(), votes.double()
    likely = confidence >= at_least
    return _binned(bins, confidence, counted.sum(1, keepdim=True) * likely, counted[:, 1:] * likely)


def ece(bins: CalibrationBins) -> Tensor:
    """Compute the expected calibration error: the mean over predictions of their bin's |accuracy − confidence|.

    Args:
        bins: of `calibration_bins` or `foreground_bins`.

    Returns:
        A float64 scalar.

    Raises:
        UserError: if the bins are empty.
    """
    total = bins.count.sum()
    if int(total) == 0:
        raise UserError("ece: the bins count no pixel; check the mask and that data was added")
    return (bins.correct_sum - bins.confidence_sum).abs().sum() / total


def brier(mean: ArrayLike, raters: ArrayLike, mask: ArrayLike | None = None) -> Tensor:
    """Compute the Brier score: Σ over labels of (p − [y = label])², averaged over pixels and raters, from 0 to 2.

    Args:
        mean: "b l *space" probabilities, such as `Samples.mean`.
        raters: "b k *space" int.
        mask: "b k *space" bool, False = void; None if nothing is void.

    Returns:
        "b" float64, nan for an image that is void everywhere.

    Raises:
        UserError: if the arguments do not fit each other or `mean` has no probabilities.

    Example:
        >>> brier([[[0.9, 0.6], [0.1, 0.4]]], [[[0, 1]]])
        tensor([0.3700], dtype=torch.float64)
    """
    total, counted = brier_sums(mean, raters, mask)
    return total / counted


def brier_sums(mean: ArrayLike, raters: ArrayLike, mask: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
    """Sum the Brier scores over pixels and raters, and count them.

    Args:
        mean: "b l *space" probabilities, such as `Samples.mean`.
        raters: "b k *space" int.
        mask: "b k *space" bool, False = void; None if nothing is void.

    Returns:
        The sums, "b" float64, and the counts, "b" int64.
    """
    mean, raters, mask = _check_calibration(mean, raters, mask)
    mean = mean.double()
    # Expanding the square needs no one-hot: Σ p² − 2 p[y] + 1.
    score = mean.square().sum(1, keepdim=True) - 2 * mean.gather(1, raters) + 1
    return (score * mask).flatten(1).sum(1), mask.flatten(1).sum(1)


def _binned(bins: int, confidence: Tensor, counted: Tensor, correct: Tensor) -> CalibrationBins:
    if not is_integer(bins) or bins < 1:
        raise UserError(f"bins: expected an integer of at least 1, got {bins!r}; 15 is customary")
    index = (confidence * bins).long().clamp(0, bins - 1).flatten()

    def binned(values: Tensor) -> Tensor:
        return values.new_zeros(bins).index_add_(0, index, values.flatten())

    return CalibrationBins(binned(counted), binned(confidence * counted), binned(correct))


def _check_calibration(mean: ArrayLike, raters: ArrayLike, mask: ArrayLike | None) -> tuple[Tensor, Tensor, Tensor]:
    """Check all three; return the raters as int64 with 0 where void, and a mask in any case."""
    mean = checks.as_tensor("mean", mean)
    raters = checks.as_labels("raters", raters)
    checks.check_dimensions("mean", "b l *space", mean)
    checks.check_dimensions("raters", "b k *space", raters)
    checks.check_aligned("mean", mean, "raters", raters)
    if not mean.is_floating_point():
        raise UserError(f'mean "b l *space": expected float probabilities, got {mean.dtype}; pass Samples.mean')
    # The tolerance is that of probabilities averaged in 16 bits.
    for what, values, low, high in (("values", mean, -0.01, 1.01), ("sums over l", mean.sum(1), 0.99, 1.01)):
        lowest, highest = (float(bound) for bound in values.aminmax())
        if not (low <= lowest and highest <= high):
            raise UserError(
                f'mean "b l *space": expected probabilities, got {what} from {lowest:g} to {highest:g}; '
                "turn logits into probabilities with softmax(1)"
            )
    if mask is None:
        mask = torch.ones_like(raters, dtype=torch.bool)
    else:
        mask = checks.as_mask(mask, raters)
        raters = raters.masked_fill(~mask, 0)  # void pixels often have a label of their own, such as 255
    checks.check_range("raters", raters, mean.shape[1])
    return mean, raters.long(), mask
