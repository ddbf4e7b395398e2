"""Selective prediction: the risk of the cases that are kept when the least confident ones go to a human."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics import checks
from stochseg.metrics.checks import ArrayLike


@dataclass(frozen=True)
class RiskCoverage:
    """Risk by coverage.

    Attributes:
        coverage: "n" float64, the kept fractions 1/n, 2/n, …, 1.
        risk: "n" float64, the mean risk of the kept cases, the most confident ones.
        best: "n" float64, the same if cases were sorted by their risk itself.
    """

    coverage: Tensor
    risk: Tensor
    best: Tensor

    @property
    def area(self) -> float:
        """Area under the curve (AURC): the mean of the risk over all coverages."""
        return float(self.risk.mean())

    @property
    def best_area(self) -> float:
        """The smallest area that any order of these cases has."""
        return float(self.best.mean())

    @property
    def random_area(self) -> float:
        """The expected area of a random order: the mean risk."""
        return float(self.risk[-1])


def risk_coverage(risk: ArrayLike, confidence: ArrayLike) -> RiskCoverage:
    """Compute the mean risk of the k most confident cases for every k (Geifman & El-Yaniv 2017).

    Of cases with the same confidence, any order is equally likely: the result is the expectation over these orders.

    Args:
        risk: "n", of each case, such as 1 - Dice.
        confidence: "n", by which cases are kept.

    Returns:
        The curve.

    Raises:
        UserError: if there are no cases, or not one finite risk and confidence per case.

    >>> curve = risk_coverage([0.5, 0.1, 0.3], [0.2, 0.9, 0.6])
    >>> [round(each, 2) for each in curve.risk.tolist()], round(curve.area, 3)
    ([0.1, 0.2, 0.3], 0.2)
    """
    r, c = (checks.as_tensor(name, x).double() for name, x in (("risk", risk), ("confidence", confidence)))
    if r.ndim != 1 or r.shape != c.shape or len(r) == 0 or not bool(torch.isfinite(torch.stack([r, c])).all()):
        raise UserError(
            f'risk_coverage: expected finite risk "n" and confidence "n" of at least one case, got shapes '
            f"{tuple(r.shape)} and {tuple(c.shape)}"
        )
    kept = torch.arange(1, len(r) + 1, dtype=torch.float64)
    _, tied = torch.unique(-c, return_inverse=True)  # numbers of equal confidences, the highest first
    counts = torch.bincount(tied)
    means = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, tied, r) / counts
    expected = means.repeat_interleave(counts)  # of the k-th case that is kept
    return RiskCoverage(kept / len(r), expected.cumsum(0) / kept, r.sort().values.cumsum(0) / kept)


def fused_dice(fused: ArrayLike, maps: ArrayLike, num_classes: int, mask: ArrayLike | None = None) -> Tensor:
    """Compute the Dice score of a fused map with each of several maps, per foreground class.

    Args:
        fused: "b *space" int.
        maps: "b n *space" int, such as samples or raters.
        num_classes: l, background included.
        mask: "b n *space" bool, False = void; None if nothing is void.

    Returns:
        "b n l-1" float64; 1 for a class that is in neither map.

    >>> fused_dice([[0, 1, 1]], [[[0, 1, 0], [0, 0, 0]]], num_classes=2)[0].tolist()
    [[0.6666666666666666], [0.0]]
    """
    fused, maps = checks.as_labels("fused", fused), checks.as_labels("maps", maps)
    if maps.ndim != fused.ndim + 1 or maps.shape[:1] != fused.shape[:1] or maps.shape[2:] != fused.shape[1:]:
        raise UserError(
            f'fused_dice: expected fused "b *space" and maps "b n *space", got shapes {tuple(fused.shape)} and '
            f"{tuple(maps.shape)}"
        )
    known = torch.ones_like(maps, dtype=torch.bool) if mask is None else checks.as_mask(mask, maps)
    scores = []
    for label in range(1, num_classes):
        ours, theirs = (fused == label)[:, None] & known, (maps == label) & known
        both, total = ((ours & theirs).flatten(2).sum(2), ours.flatten(2).sum(2) + theirs.flatten(2).sum(2))
        scores.append(torch.where(total > 0, 2 * both.double() / total, 1.0))
    return torch.stack(scores, -1)
