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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics.checks import check_aligned, check_kind, check_maps, check_range, check_sets

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
    check_maps("a", "b n h w", a, num_classes)
    check_maps("b", "b m h w", b, num_classes)
    check_aligned("a", a, "b", b)
    n = a.shape[1]
    return _iou(_joined(num_classes, a, b), slice(0, n), slice(n, None), num_classes)


def iou_blocks(samples: Tensor, raters: Tensor, num_classes: int) -> IoUBlocks:
    """All that GED, HM-IoU and diversity need, by one product a class over [samples; raters].

    samples: "b n h w" int; raters: "b k h w" int.
    """
    check_sets(samples, raters, num_classes)
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


# --- Generalized energy distance and diversity -----------------------------------------------------------


def ged(
    samples: Tensor,
    raters: Tensor,
    num_classes: int,
    *,
    weights: Tensor | None = None,
    rater_weights: Tensor | None = None,
    unbiased: bool = False,
) -> Tensor:
    """Squared generalized energy distance, 2 E d(s, y) − E d(y, y') − E d(s, s') with d = 1 − IoU.

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
    check_maps("samples", "b n h w", samples, num_classes)
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
    check_sets(samples, raters, num_classes)
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
    check_kind("prediction", prediction)
    check_kind("target", target)
    if prediction.shape != target.shape:
        raise UserError(
            f"prediction and target: expected one shape, got {tuple(prediction.shape)} and "
            f"{tuple(target.shape)}; resize one to the other, labels by nearest neighbor"
        )
    if ignore is not None:
        kept = target != ignore
        prediction, target = prediction[kept], target[kept]
    check_range("prediction", prediction, num_classes)
    check_range("target", target, num_classes)
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
