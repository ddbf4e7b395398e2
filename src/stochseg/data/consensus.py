"""One label map of several raters: majority, and STAPLE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.errors import UserError

Maps = npt.NDArray[np.integer[Any]]
START = 0.99999
"""Chance that a rater gives the true label, before the first step."""
MAX_STEPS = 1000


@dataclass(frozen=True)
class Staple:
    """The estimate of STAPLE.

    probabilities: of the true label, "l *space" float64; confusion: chance of each rater to write label s where l is
    true, "k l s".
    """

    probabilities: npt.NDArray[np.float64]
    confusion: npt.NDArray[np.float64]

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The most probable label, "*space"."""
        best: npt.NDArray[np.int64] = self.probabilities.argmax(0)
        return best


def majority(maps: Any, num_classes: int, ignore: int | None = None) -> npt.NDArray[Any]:
    """The most frequent label; of a tie, the lowest.

    Args:
        maps: "k *space", integers.
        num_classes: labels, the background included.
        ignore: label of void pixels, which do not vote; where all are void, the result is.

    Returns:
        "*space" of the type of the maps.

    >>> majority(np.array([[0, 1, 1], [2, 1, 0], [2, 0, 1]]), 3).tolist()
    [2, 1, 1]
    """
    maps = _checked(maps)
    best, votes = np.full(maps.shape[1:], 0 if ignore is None else ignore, maps.dtype), np.zeros(maps.shape[1:], int)
    for label in range(num_classes):
        count = (maps == label).sum(0)
        best[count > votes] = label
        votes = np.maximum(votes, count)
    return best


def staple(maps: Any, num_classes: int, ignore: int | None = None, *, tolerance: float = 1e-7) -> Staple:
    """Estimate the true labels and how reliable each rater is, from each other (Warfield, Zou, Wells, 2004).

    Expectation-maximization: given the confusion of every rater, the probability of each true label at a pixel follows
    from Bayes' rule; given these, the confusion is a weighted count. The prior of a label is its fraction of all votes.
    Pixels with the same votes are computed once.

    Args:
        maps: "k *space", integers.
        num_classes: labels, the background included.
        ignore: label of void pixels, which do not vote.
        tolerance: stop when no entry of a confusion changes by more.

    Returns:
        The estimate.

    Raises:
        UserError: if there is no map, or a label is no class.

    >>> votes = np.array([[0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]])
    >>> staple(votes, 2).labels.tolist()
    [0, 0, 1, 1, 1, 0]
    """
    maps = _checked(maps)
    wrong = (maps >= num_classes) | (maps < 0)
    if (wrong & (maps != ignore)).any():
        raise UserError(f"staple: expected labels 0..{num_classes - 1}, got {int(maps[wrong].flat[0])}")
    columns = np.where(wrong, num_classes, maps).reshape(len(maps), -1)
    votes, place, count = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    hot = votes[:, None] == np.arange(num_classes)[:, None]  # "k s u", nothing for void
    prior = (hot * count).sum((0, 2)) / max(1, (hot * count).sum())
    off = (1 - START) / max(1, num_classes - 1)
    confusion = np.full((len(maps), num_classes, num_classes), off)
    confusion[:, range(num_classes), range(num_classes)] = START
    for _ in range(MAX_STEPS):
        posterior = _expectation(hot, confusion, prior)
        weighted = posterior * count
        counts = np.einsum("lu,ksu->kls", weighted, hot)
        total = counts.sum(2, keepdims=True)
        updated = np.where(total > 0, counts / np.maximum(total, 1e-300), confusion)
        change = float(np.abs(updated - confusion).max())
        confusion = updated
        if change <= tolerance:
            break
    posterior = _expectation(hot, confusion, prior)
    return Staple(posterior[:, place.ravel()].reshape(num_classes, *maps.shape[1:]), confusion)


def _expectation(hot: Any, confusion: Any, prior: Any) -> Any:
    """Probability of each true label for each combination of votes, "l u"."""
    with np.errstate(divide="ignore"):
        logs = np.log(confusion)
    terms = np.where(hot[:, None], logs[..., None], 0.0).sum((0, 2))  # over raters and their labels; void adds nothing
    with np.errstate(divide="ignore"):
        terms = terms + np.log(prior)[:, None]
    best = terms.max(0)
    likely = np.exp(terms - np.where(np.isfinite(best), best, 0.0))
    total = likely.sum(0)
    return np.where(total > 0, likely / np.where(total > 0, total, 1.0), prior[:, None])


def _checked(values: Any) -> Maps:
    maps: Maps = np.asarray(values)
    if maps.ndim < 2 or maps.size == 0 or maps.dtype.kind not in "ui":
        raise UserError(f'consensus: expected integers "k *space", got shape {maps.shape} {maps.dtype}')
    return maps
