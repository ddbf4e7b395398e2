"""The metrics of stochastic segmentation that compare sets of label maps: GED, diversity, HM-IoU.

Letters: b batch, n samples, k raters, l labels. Label maps are integers in 0..l-1 of any number of dimensions, label 0
is the background. Results are float64: they are small, and GED is a difference of means.

All three are functions of the IoU between label maps. `iou_blocks` computes it once; the `*_from_iou` functions then
serve any number of first samples without reading a pixel again:

    blocks = iou_blocks(samples, raters, num_classes)
    scores = {n: ged_from_iou(*blocks.first(n)) for n in (16, 32, 50, 100)}
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics.checks import ArrayLike, as_maps, as_sets, as_tensor
from stochseg.metrics.iou import all_iou, cross_iou, iou_blocks

Matrix = npt.NDArray[np.float64]

# Beyond this size the repeated matrix of HM-IoU is slower to match than the transport it stands for.
_LARGEST_MATCH = 512


# --- Generalized energy distance and diversity -----------------------------------------------------------


def ged(
    samples: ArrayLike,
    raters: ArrayLike,
    num_classes: int,
    *,
    weights: ArrayLike | None = None,
    rater_weights: ArrayLike | None = None,
    unbiased: bool = False,
) -> Tensor:
    """Compute the squared generalized energy distance, 2 E d(s, y) − E d(y, y') − E d(s, s') with d = 1 − IoU.

    CCDM Eq. ged. The published form keeps the pairs of a sample with itself (a V-statistic) and therefore depends on n:
    E[GED_n] = GED_∞ + D_∞ / n, with D_∞ the mean distance of two independent samples. `unbiased` leaves those pairs
    out (a U-statistic in the samples) and estimates GED_∞ at any n ≥ 2. Both forms take the raters as the whole target
    distribution.

    Args:
        samples: "b n *space" int.
        raters: "b k *space" int.
        num_classes: l, background included.
        weights: "b n", non-negative, divided by their sum; None is equal weights.
        rater_weights: "b k", as `weights`.
        unbiased: leave out the pairs of a sample with itself.

    Returns:
        "b" float64.

    Raises:
        UserError: if the maps or weights do not fit, or `unbiased` meets fewer than 2 samples with weight.

    Example:
        >>> samples, raters = [[[1, 1, 0, 0], [1, 0, 0, 0]]], [[[1, 1, 0, 0]]]
        >>> ged(samples, raters, num_classes=2)
        tensor([0.2500], dtype=torch.float64)
    """
    return ged_from_iou(
        *iou_blocks(samples, raters, num_classes), weights=weights, rater_weights=rater_weights, unbiased=unbiased
    )


def ged_from_iou(
    samples_samples: ArrayLike,
    samples_raters: ArrayLike,
    raters_raters: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    rater_weights: ArrayLike | None = None,
    unbiased: bool = False,
) -> Tensor:
    """Compute `ged` from the IoU of all pairs, such as `iou_blocks` returns.

    Args:
        samples_samples: "b n n".
        samples_raters: "b n k".
        raters_raters: "b k k".
        weights: "b n", as in `ged`.
        rater_weights: "b k", as in `ged`.
        unbiased: as in `ged`.

    Returns:
        "b" float64.
    """
    within, between, raters = (as_tensor("iou", block) for block in (samples_samples, samples_raters, raters_raters))
    w = _probabilities("weights", "b n", weights, between[:, :, 0])
    v = _probabilities("rater_weights", "b k", rater_weights, between[:, 0])
    return 2 * _expectation(1 - between, w, v) - _expectation(1 - raters, v, v) - _within_samples(within, w, unbiased)


def diversity(
    samples: ArrayLike, num_classes: int, *, weights: ArrayLike | None = None, unbiased: bool = False
) -> Tensor:
    """Compute the mean distance 1 − IoU of two samples, E d(s, s').

    Args:
        samples: "b n *space" int.
        num_classes: l, background included.
        weights: "b n", non-negative, divided by their sum; None is equal weights.
        unbiased: leave out the pairs of a sample with itself; the expectation then does not depend on n.

    Returns:
        "b" float64.

    Raises:
        UserError: if the maps or weights do not fit, or `unbiased` meets fewer than 2 samples with weight.

    Example:
        >>> diversity([[[1, 1, 0, 0], [1, 0, 0, 0]]], num_classes=2)
        tensor([0.2500], dtype=torch.float64)
    """
    iou = all_iou(num_classes, as_maps("samples", "b n *space", samples, num_classes))
    return diversity_from_iou(iou, weights=weights, unbiased=unbiased)


def diversity_from_iou(
    samples_samples: ArrayLike, *, weights: ArrayLike | None = None, unbiased: bool = False
) -> Tensor:
    """Compute `diversity` from the IoU of all pairs of samples.

    Args:
        samples_samples: "b n n".
        weights: "b n", as in `diversity`.
        unbiased: as in `diversity`.

    Returns:
        "b" float64.
    """
    iou = as_tensor("iou", samples_samples)
    return _within_samples(iou, _probabilities("weights", "b n", weights, iou[:, :, 0]), unbiased)


def _within_samples(samples_samples: Tensor, w: Tensor, unbiased: bool) -> Tensor:
    """E d(s, s') under the weights w "b n"."""
    biased = _expectation(1 - samples_samples, w, w)
    if not unbiased:
        return biased
    # A sample's distance to itself is 0: without the self pairs, only the total weight of the pairs changes.
    pairs = 1 - w.square().sum(1)
    if bool((pairs < 1e-9).any()):
        raise UserError(
            "unbiased=True: expected at least 2 samples with weight per image, got an image where one has all of it "
            f"(n = {w.shape[1]}); draw more samples or use unbiased=False"
        )
    return biased / pairs


def _expectation(values: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Mean of values "b n m" under the probabilities w "b n" and v "b m"."""
    return (values * (w[:, :, None] * v[:, None])).sum((1, 2))


def _probabilities(name: str, pattern: str, weights: ArrayLike | None, like: Tensor) -> Tensor:
    """Weights as float64 probabilities of the shape of `like`: equal if None, else divided by their sum."""
    if weights is None:
        return torch.full(like.shape, 1 / like.shape[1], dtype=torch.float64, device=like.device)
    weights = as_tensor(name, weights)
    if weights.shape != like.shape:
        raise UserError(
            f'{name} "{pattern}": expected shape {tuple(like.shape)}, got {tuple(weights.shape)}; '
            "give one weight per map, or None for equal weights"
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


def hm_iou(samples: ArrayLike, raters: ArrayLike, num_classes: int, *, weights: ArrayLike | None = None) -> Tensor:
    """Compute the Hungarian-matched IoU: repeat both sets to lcm(n, k), match them best, average the IoU of the pairs.

    With weights it is the optimal transport from the weighted samples to the equally weighted raters. The match of the
    repeated sets is its special case of equal weights: of all best plans between multiples of 1/lcm(n, k), one moves
    whole multiples.

    Args:
        samples: "b n *space" int.
        raters: "b k *space" int.
        num_classes: l, background included.
        weights: "b n", non-negative, divided by their sum; None is equal weights.

    Returns:
        "b" float64.

    Raises:
        UserError: if the maps or weights do not fit.

    Example:
        >>> samples, raters = [[[1, 1, 0, 0], [1, 0, 0, 0]]], [[[1, 1, 0, 0]]]
        >>> hm_iou(samples, raters, num_classes=2)
        tensor([0.7500], dtype=torch.float64)
    """
    iou = cross_iou(*as_sets(samples, raters, num_classes), num_classes)
    return hm_iou_from_iou(iou, weights=weights)


def hm_iou_from_iou(samples_raters: ArrayLike, *, weights: ArrayLike | None = None) -> Tensor:
    """Compute `hm_iou` from the IoU of samples and raters.

    Args:
        samples_raters: "b n k".
        weights: "b n", as in `hm_iou`.

    Returns:
        "b" float64.
    """
    block = as_tensor("iou", samples_raters)
    images: list[Matrix] = list(block.double().cpu().numpy())
    w = _probabilities("weights", "b n", weights, block[:, :, 0]).cpu().numpy()
    n, k = block.shape[1:]
    if weights is None and math.lcm(n, k) <= _LARGEST_MATCH:
        scores = [_matched(iou) for iou in images]
    else:
        scores = [_transported(iou, row) for iou, row in zip(images, w, strict=True)]
    return torch.tensor(scores, dtype=torch.float64, device=block.device)


def _matched(iou: Matrix) -> float:
    """Mean IoU of the best one-to-one match of both sets of "n k", repeated to their common size."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    n, k = iou.shape
    size = math.lcm(n, k)
    repeated = iou.repeat(size // n, axis=0).repeat(size // k, axis=1)
    rows, columns = linear_sum_assignment(repeated, maximize=True)
    return float(repeated[rows, columns].mean())


def _transported(iou: Matrix, w: Matrix) -> float:
    """Mean IoU "n k" under the best plan that moves the weights w "n" to equally weighted raters."""
    from scipy import sparse  # slow to import
    from scipy.optimize import linprog

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
