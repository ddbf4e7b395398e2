"""The metrics of stochastic segmentation as pure functions.

Letters: b batch, n samples, k raters, m any number of maps, l labels, h w space. Label maps are integers in
0..l-1, label 0 is the background. Results are float64: they are small, and GED is a difference of means.

GED, HM-IoU and diversity are all functions of the IoU between label maps. `iou_blocks` computes it once;
the `*_from_iou` functions then serve any number of first samples without looking at a pixel again:

    blocks = iou_blocks(samples, raters, num_classes)
    scores = {n: ged_from_iou(*blocks.first(n)) for n in (16, 32, 50, 100)}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from stochseg.errors import UserError

Matrix = npt.NDArray[np.float64]

# Integers up to here are exact in float32, so a product of 0/1 matrices counts without error.
_FLOAT32_EXACT = 2**24

# Beyond this size the repeated matrix of HM-IoU is slower to match than the transport it stands for.
_LARGEST_MATCH = 512


# --- IoU between label maps ------------------------------------------------------------------------------


class IoUBlocks(NamedTuple):
    """IoU within and between the samples and the raters of each image, ready to unpack.

    samples_samples: "b n n"; samples_raters: "b n k"; raters_raters: "b k k".
    """

    samples_samples: Tensor
    samples_raters: Tensor
    raters_raters: Tensor

    def first(self, n: int) -> IoUBlocks:
        """The blocks of the first n samples: views, nothing is computed again."""
        available = self.samples_raters.shape[1]
        if not 1 <= n <= available:
            raise UserError(
                f"first({n}): expected 1 to {available}, the samples at hand; ask for fewer or draw more samples"
            )
        return IoUBlocks(self.samples_samples[:, :n, :n], self.samples_raters[:, :n], self.raters_raters)


def pairwise_iou(a: Tensor, b: Tensor, num_classes: int) -> Tensor:
    """Mean IoU of the foreground classes between all maps of two sets; empty against empty is 1.

    a: "b n h w" int; b: "b m h w" int. Returns "b n m".
    """
    _check_maps("a", "b n h w", a, num_classes)
    _check_maps("b", "b m h w", b, num_classes)
    _check_aligned("a", a, "b", b)
    n = a.shape[1]
    return _iou(_joined(num_classes, a, b), slice(0, n), slice(n, None), num_classes)


def iou_blocks(samples: Tensor, raters: Tensor, num_classes: int) -> IoUBlocks:
    """All that GED, HM-IoU and diversity need, by one product a class over [samples; raters].

    samples: "b n h w" int; raters: "b k h w" int.
    """
    _check_sets(samples, raters, num_classes)
    everything = slice(None)
    iou = _iou(_joined(num_classes, samples, raters), everything, everything, num_classes)
    n = samples.shape[1]
    return IoUBlocks(iou[:, :n, :n], iou[:, :n, n:], iou[:, n:, n:])


def _joined(num_classes: int, *sets: Tensor) -> Tensor:
    """Checked sets "b m h w" as one "b m p" in the smallest integers: every later pass reads 8 times less."""
    dtype = torch.uint8 if num_classes <= 256 else torch.int32
    b, _, h, w = sets[0].shape
    joined = torch.empty(b, sum(maps.shape[1] for maps in sets), h, w, dtype=dtype, device=sets[0].device)
    start = 0
    for maps in sets:
        stop = start + maps.shape[1]
        joined[:, start:stop] = maps
        start = stop
    return joined.flatten(2)


def _iou(maps: Tensor, rows: slice, columns: slice, num_classes: int) -> Tensor:
    """Foreground mean IoU between two slices of the maps "b m p" of each image."""
    images = []
    # Autocast would run the product in 16 bits, in which counts above 256 are no longer exact.
    with torch.autocast(maps.device.type, enabled=False):
        for image in maps:
            classes = (_class_iou(image, label, rows, columns) for label in range(1, num_classes))
            images.append(sum(classes, start=torch.zeros((), dtype=torch.float64, device=maps.device)))
    return torch.stack(images) / (num_classes - 1)


def _class_iou(maps: Tensor, label: int, rows: slice, columns: slice) -> Tensor:
    """IoU of one class between two slices of the maps "m p" of one image, by one matrix product."""
    # Written to integers because the comparison to bool is not vectorised on the CPU (25 times slower).
    hit = torch.eq(maps, label, out=torch.empty_like(maps))
    # A pixel where no map has the class adds nothing to any count; for most classes that is most pixels.
    used = hit.amax(0).nonzero().squeeze(1)
    one_hot = hit.gather(1, used.expand(len(maps), -1)).to(_counting_dtype(len(used)))
    intersection = (one_hot[rows] @ one_hot[columns].T).double()
    area = one_hot.sum(1).double()
    union = area[rows, None] + area[None, columns] - intersection
    return torch.where(union > 0, intersection / union, 1.0)


def _counting_dtype(pixels: int) -> torch.dtype:
    """The cheapest float that counts so many pixels without error."""
    return torch.float32 if pixels <= _FLOAT32_EXACT else torch.float64


def without_void(samples: Tensor, raters: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both sets with background wherever a rater left the pixel void, so that it adds nothing to any IoU.

    samples: "b n h w"; raters: "b k h w"; mask: "b k h w" bool, False = void (None: nothing is void).
    """
    if mask is None:
        return samples, raters
    known = mask.all(1, keepdim=True)
    return samples * known, raters * known


# --- Generalised energy distance and diversity -----------------------------------------------------------


def ged(
    samples: Tensor,
    raters: Tensor,
    num_classes: int,
    *,
    weights: Tensor | None = None,
    rater_weights: Tensor | None = None,
    unbiased: bool = False,
) -> Tensor:
    """Squared generalised energy distance, 2 E d(s, y) − E d(y, y') − E d(s, s') with d = 1 − IoU.

    samples: "b n h w" int; raters: "b k h w" int; weights: "b n" and rater_weights: "b k", non-negative,
    divided by their sum (None: equal). Returns "b".

    The published form keeps the pairs of a sample with itself (a V-statistic) and so depends on n:
    E[GED_n] = GED_∞ + D_∞ / n, with D_∞ the mean distance of two independent samples. `unbiased` leaves
    those pairs out (a U-statistic in the samples) and estimates GED_∞ at any n ≥ 2. Both forms take the
    raters as the whole target distribution.
    """
    return ged_from_iou(
        *iou_blocks(samples, raters, num_classes),
        weights=weights,
        rater_weights=rater_weights,
        unbiased=unbiased,
    )


def ged_from_iou(
    samples_samples: Tensor,
    samples_raters: Tensor,
    raters_raters: Tensor,
    *,
    weights: Tensor | None = None,
    rater_weights: Tensor | None = None,
    unbiased: bool = False,
) -> Tensor:
    """`ged` of known IoU: samples_samples "b n n", samples_raters "b n k", raters_raters "b k k"."""
    w = _probabilities("weights", "b n", weights, samples_raters[:, :, 0])
    v = _probabilities("rater_weights", "b k", rater_weights, samples_raters[:, 0])
    between = _expectation(1 - samples_raters, w, v)
    within_raters = _expectation(1 - raters_raters, v, v)
    return 2 * between - within_raters - _within_samples(samples_samples, w, unbiased)


def diversity(samples: Tensor, num_classes: int, *, weights: Tensor | None = None, unbiased: bool = False) -> Tensor:
    """Mean distance 1 − IoU of two samples, E d(s, s').

    samples: "b n h w" int; weights: "b n", non-negative, divided by their sum (None: equal). Returns "b".
    With `unbiased`, the pairs of a sample with itself are left out, and n stops mattering.
    """
    _check_maps("samples", "b n h w", samples, num_classes)
    everything = slice(None)
    iou = _iou(_joined(num_classes, samples), everything, everything, num_classes)
    return diversity_from_iou(iou, weights=weights, unbiased=unbiased)


def diversity_from_iou(samples_samples: Tensor, *, weights: Tensor | None = None, unbiased: bool = False) -> Tensor:
    """`diversity` of known IoU: samples_samples "b n n"."""
    w = _probabilities("weights", "b n", weights, samples_samples[:, :, 0])
    return _within_samples(samples_samples, w, unbiased)


def _within_samples(samples_samples: Tensor, w: Tensor, unbiased: bool) -> Tensor:
    """E d(s, s') under the weights w "b n"."""
    biased = _expectation(1 - samples_samples, w, w)
    if not unbiased:
        return biased
    # A sample's distance to itself is 0: without the self pairs, only the total weight of the pairs changes.
    pairs = 1 - w.square().sum(1)
    if bool((pairs < 1e-9).any()):
        raise UserError(
            "unbiased=True: expected at least 2 samples with weight an image, got one that carries it all "
            f"(n = {w.shape[1]}); draw more samples or use unbiased=False"
        )
    return biased / pairs


def _expectation(values: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Mean of values "b n m" under the probabilities w "b n" and v "b m"."""
    return (values * (w[:, :, None] * v[:, None])).sum((1, 2))


def _probabilities(name: str, pattern: str, weights: Tensor | None, like: Tensor) -> Tensor:
    """Weights as float64 probabilities of the shape of `like`: equal if None, else divided by their sum."""
    if weights is None:
        return torch.full(like.shape, 1 / like.shape[1], dtype=torch.float64, device=like.device)
    if weights.shape != like.shape:
        raise UserError(
            f'{name} "{pattern}": expected shape {tuple(like.shape)}, got {tuple(weights.shape)}; '
            "give one weight a map, or None for equal weights"
        )
    weights = weights.to(like.device, torch.float64)
    total = weights.sum(1, keepdim=True)
    if not bool(((weights >= 0).all(1, keepdim=True) & (total > 0) & total.isfinite()).all()):
        raise UserError(
            f'{name} "{pattern}": expected finite weights, none negative and not all zero in an image, got '
            f"{weights.min():g} to {weights.max():g}; pass probabilities, or None for equal weights"
        )
    return weights / total


# --- Hungarian-matched IoU -------------------------------------------------------------------------------


def hm_iou(samples: Tensor, raters: Tensor, num_classes: int, *, weights: Tensor | None = None) -> Tensor:
    """Hungarian-matched IoU: both sets repeated to lcm(n, k), one best match, mean IoU of the matched pairs.

    samples: "b n h w" int; raters: "b k h w" int; weights: "b n", non-negative, divided by their sum.
    Returns "b".

    With weights it is the optimal transport from the weighted samples to the equally weighted raters. The
    match of the repeated sets is its case of equal weights: of all best plans between multiples of
    1/lcm(n, k), one moves whole multiples.
    """
    _check_sets(samples, raters, num_classes)
    n = samples.shape[1]
    iou = _iou(_joined(num_classes, samples, raters), slice(0, n), slice(n, None), num_classes)
    return hm_iou_from_iou(iou, weights=weights)


def hm_iou_from_iou(samples_raters: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """`hm_iou` of known IoU: samples_raters "b n k"."""
    images: list[Matrix] = list(samples_raters.double().cpu().numpy())
    w = _probabilities("weights", "b n", weights, samples_raters[:, :, 0]).cpu().numpy()
    n, k = samples_raters.shape[1:]
    if weights is None and math.lcm(n, k) <= _LARGEST_MATCH:
        scores = [_matched(iou) for iou in images]
    else:
        scores = [_transported(iou, row) for iou, row in zip(images, w, strict=True)]
    return torch.tensor(scores, dtype=torch.float64, device=samples_raters.device)


def _matched(iou: Matrix) -> float:
    """Mean IoU of the best one-to-one match of both sets of "n k", repeated to their common size."""
    n, k = iou.shape
    size = math.lcm(n, k)
    repeated = iou.repeat(size // n, axis=0).repeat(size // k, axis=1)
    rows, columns = linear_sum_assignment(repeated, maximize=True)
    return float(repeated[rows, columns].mean())


def _transported(iou: Matrix, w: Matrix) -> float:
    """Mean IoU "n k" under the best plan that moves the weights w "n" to equally weighted raters."""
    n, k = iou.shape
    leaves_sample = sparse.kron(sparse.eye(n), np.ones((1, k)))
    reaches_rater = sparse.kron(np.ones((1, n)), sparse.eye(k))
    plan = linprog(
        -iou.ravel(),
        A_eq=sparse.vstack([leaves_sample, reaches_rater], format="csr"),
        b_eq=np.concatenate([w, np.full(k, 1 / k)]),
        method="highs",
    )
    if not plan.success:
        raise RuntimeError(f"optimal transport of HM-IoU failed: {plan.message}")
    return float(-plan.fun)


# --- IoU of one map over a data set ----------------------------------------------------------------------


def confusion_matrix(prediction: Tensor, target: Tensor, num_classes: int, ignore: int | None = None) -> Tensor:
    """Count the pixels of each (target, prediction) pair of labels; add the matrices of a whole data set.

    prediction, target: any one shape, such as "b h w", int; target pixels equal to `ignore` are left out.
    Returns "l l" int64, rows are the target.
    """
    _check_kind("prediction", prediction)
    _check_kind("target", target)
    if prediction.shape != target.shape:
        raise UserError(
            f"prediction and target: expected one shape, got {tuple(prediction.shape)} and "
            f"{tuple(target.shape)}; resize one to the other, labels by nearest neighbour"
        )
    if ignore is not None:
        kept = target != ignore
        prediction, target = prediction[kept], target[kept]
    _check_range("prediction", prediction, num_classes)
    _check_range("target", target, num_classes)
    pairs = target.long().flatten() * num_classes + prediction.long().flatten()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def iou_per_class(confusion: Tensor) -> Tensor:
    """IoU of each class of a confusion matrix "l l", nan for a class in neither prediction nor target."""
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise UserError(
            f'confusion "l l": expected a square matrix, got shape {tuple(confusion.shape)}; '
            "build it with confusion_matrix"
        )
    both = confusion.diagonal().double()
    return both / (confusion.sum(0) + confusion.sum(1) - both)


def miou(confusion: Tensor) -> Tensor:
    """Mean IoU of a data-set confusion matrix "l l", over the classes that occur. Returns a scalar."""
    classes = iou_per_class(confusion)
    if not bool((confusion > 0).any()):
        raise UserError("miou: the confusion matrix counts no pixel; check `ignore` and that data was added")
    return classes.nanmean()


# --- Calibration of the mean probabilities ---------------------------------------------------------------


@dataclass(frozen=True)
class CalibrationBins:
    """What calibration error needs of any number of images; bins of several images add up with `+`.

    count: int64, pixels a bin, each as often as raters labelled it; confidence_sum: float64, their top
    probability; correct_sum: int64, how many of them have the top label.
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
    if bins < 1:
        raise UserError(f"bins: expected at least 1, got {bins}; 15 is customary")
    raters, mask = _check_calibration(mean, raters, mask)
    confidence, label = mean.double().max(1)
    index = (confidence * bins).long().clamp(0, bins - 1).flatten()
    # All raters of a pixel share its bin, so they are counted first and binned once.
    counted = mask.sum(1)
    correct = ((raters == label[:, None]) & mask).sum(1)

    def binned(values: Tensor) -> Tensor:
        return values.new_zeros(bins).index_add_(0, index, values.flatten())

    return CalibrationBins(binned(counted), binned(confidence * counted), binned(correct))


def ece(bins: CalibrationBins) -> Tensor:
    """Expected calibration error of the top label: Σ bins share · |accuracy − confidence|, a scalar."""
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


def _check_calibration(mean: Tensor, raters: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check all three; returns the raters as int64 with 0 where not counted, and the mask in full."""
    _check_dimensions("mean", "b l h w", mean)
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
    _check_dimensions("raters", "b k h w", raters)
    _check_kind("raters", raters)
    _check_aligned("mean", mean, "raters", raters)
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
    _check_range("raters", raters, mean.shape[1])
    return raters.long(), mask


# --- Checks of what the user passed ----------------------------------------------------------------------


def _check_sets(samples: Tensor, raters: Tensor, num_classes: int) -> None:
    _check_maps("samples", "b n h w", samples, num_classes)
    _check_maps("raters", "b k h w", raters, num_classes)
    _check_aligned("samples", samples, "raters", raters)


def _check_maps(name: str, pattern: str, maps: Tensor, num_classes: int) -> None:
    if num_classes < 2:
        raise UserError(f"num_classes: expected at least 2, background and foreground, got {num_classes}")
    _check_dimensions(name, pattern, maps)
    _check_kind(name, maps)
    _check_range(name, maps, num_classes)


def _check_dimensions(name: str, pattern: str, values: Tensor) -> None:
    if values.ndim != 4:
        todo = f"add a batch dimension with {name}[None]" if values.ndim == 3 else f'pass a tensor "{pattern}"'
        raise UserError(f'{name} "{pattern}": expected 4 dimensions, got shape {tuple(values.shape)}; {todo}')
    if values.numel() == 0:
        raise UserError(
            f'{name} "{pattern}": expected at least one of each, got shape {tuple(values.shape)}; skip empty batches'
        )


def _check_kind(name: str, maps: Tensor) -> None:
    if maps.is_floating_point() or maps.is_complex():
        raise UserError(
            f"{name}: expected integer labels, got {maps.dtype}; take argmax(1) of logits, "
            "or call .long() if these are labels"
        )
    if maps.device.type == "mps":
        raise UserError(f"{name}: metrics need float64, which device mps does not have; pass {name}.cpu()")


def _check_range(name: str, maps: Tensor, num_classes: int) -> None:
    if maps.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in maps.aminmax())
    if lowest < 0 or highest >= num_classes:
        raise UserError(
            f"{name}: expected labels 0 to {num_classes - 1}, got {lowest} to {highest}; "
            "raise num_classes, or map void labels to a class or a mask first"
        )


def _check_aligned(name: str, a: Tensor, other: str, b: Tensor) -> None:
    if a.shape[0] != b.shape[0] or a.shape[-2:] != b.shape[-2:]:
        raise UserError(
            f"{name} and {other}: expected equal b, h and w, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; compare maps of the same images at one resolution"
        )
