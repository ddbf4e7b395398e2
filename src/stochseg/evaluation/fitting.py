"""Fits of a calibration from the scores of cases, each checked on patients that it left out, in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stochseg.analysis.conformal import conformal_interval, conformal_offset, conformity
from stochseg.analysis.measurement import Measurement, Values
from stochseg.errors import unknown_name
from stochseg.metrics import ece, fit_scaling, scale_probabilities, vote_bins
from stochseg.metrics.calibration import LIKELY
from stochseg.metrics.scaling import Kind
from stochseg.models.calibration import IntervalOffset, MarginOffset, Scaling

Key = tuple[str, int | None]
"""A measure and a class; None for all foreground."""
FOLDS = 10
KINDS: tuple[Kind, ...] = ("temperature", "vector")


@dataclass(frozen=True)
class CaseScores:
    """What calibration needs of one case.

    index: in the data; group: its patient; measured: the measurement of its samples and the values "k" of its raters;
    margins: scores "k" of the raters by class; probabilities, votes: "p l" of some pixels; evaluations: per sample.
    """

    index: int
    group: str
    measured: Mapping[Key, tuple[Measurement, Values]]
    margins: Mapping[int, Values]
    probabilities: Tensor
    votes: Tensor
    evaluations: int


def folds(groups: Sequence[str]) -> Iterator[tuple[list[int], list[int]]]:
    """Split cases by patient into `FOLDS` parts (fewer, if there are fewer patients); yield (others, part) for each.

    A single patient is left out of nothing: it is fitted and tested on.
    """
    names = sorted(set(groups))
    order = np.random.default_rng(0).permutation(len(names))
    part_of = {names[place]: number % min(FOLDS, len(names)) for number, place in enumerate(order)}
    for number in range(min(FOLDS, len(names))):
        part = [i for i, group in enumerate(groups) if part_of[group] == number]
        others = [i for i, group in enumerate(groups) if part_of[group] != number]
        yield others or part, part


def by_patient(groups: Sequence[str], values: Sequence[Values], chosen: Sequence[int]) -> list[list[Values]]:
    """Values of the raters of some cases, by patient and case."""
    found: dict[str, list[Values]] = {}
    for i in chosen:
        found.setdefault(groups[i], []).append(values[i])
    return list(found.values())


def mean_by_patient(groups: Sequence[str], values: Sequence[Values]) -> float:
    """Mean over patients of the mean over their cases of the mean over raters."""
    found = by_patient(groups, values, range(len(values)))
    return float(np.mean([np.mean([own.mean() for own in cases]) for cases in found]))


# --- intervals and margins -----------------------------------------------------------------------------------


def offset_and_coverage(groups: Sequence[str], scores: Sequence[Values], confidence: float) -> tuple[float, float]:
    """The conformal offset of all patients, and the coverage of offsets that were fitted without the patient."""
    inside: list[Values] = [np.empty(0)] * len(scores)
    for others, part in folds(groups):
        offset = conformal_offset(by_patient(groups, scores, others), confidence)
        for i in part:
            inside[i] = (scores[i] <= offset).astype(np.float64)
    offset = conformal_offset(by_patient(groups, scores, range(len(scores))), confidence)
    return offset, mean_by_patient(groups, inside)


def fit_intervals(
    cases: Sequence[CaseScores], keys: Sequence[Key], confidences: Sequence[float]
) -> tuple[IntervalOffset, ...]:
    """Fit the offset of every measurement at every confidence."""
    found = []
    for key in keys:
        usable = [case for case in cases if len(case.measured[key][1])]
        if not usable:  # no rater has a value
            continue
        groups, pairs = [case.group for case in usable], [case.measured[key] for case in usable]
        for confidence in confidences:
            scores = [conformity(samples, values, confidence) for samples, values in pairs]
            offset, covered = offset_and_coverage(groups, scores, confidence)
            before = [(each <= 0).astype(np.float64) for each in scores]
            found.append(
                IntervalOffset(
                    measure=key[0],
                    label=key[1],
                    confidence=confidence,
                    offset=_finite(offset),
                    covered_before=mean_by_patient(groups, before),
                    covered=covered,
                    width_ratio=_width_ratio([samples for samples, _ in pairs], offset, confidence),
                )
            )
    return tuple(found)


def _width_ratio(measured: Sequence[Measurement], offset: float, confidence: float) -> float | None:
    """Total width of the intervals after and before; None if either is infinite or zero."""
    if math.isinf(offset):
        return None
    measured = [each for each in measured if not math.isnan(each.mean)]
    before = sum(high - low for low, high in (each.interval(confidence) for each in measured))
    after = sum(high - low for low, high in (conformal_interval(each, offset, confidence) for each in measured))
    return after / before if before > 0 else None


def fit_margins(
    cases: Sequence[CaseScores], labels: Sequence[int], confidences: Sequence[float]
) -> tuple[MarginOffset, ...]:
    """Fit the depth of the margin of every class at every confidence."""
    groups, found = [case.group for case in cases], []
    for label in labels:
        scores = [case.margins[label] for case in cases]
        for confidence in confidences:
            offset, covered = offset_and_coverage(groups, scores, confidence)
            found.append(MarginOffset(label=label, confidence=confidence, offset=_finite(offset), covered=covered))
    return tuple(found)


def _finite(offset: float) -> float | None:
    return None if math.isinf(offset) else offset


# --- probabilities -------------------------------------------------------------------------------------------


def check_scaling(choice: str) -> None:
    """Raise a `UserError` unless it is a choice of `fit_scale`."""
    if choice not in ("auto", "none", *KINDS):
        raise unknown_name("scaling", choice, ("auto", "none", *KINDS))


def fit_scale(cases: Sequence[CaseScores], choice: str) -> Scaling | None:
    """Fit the scaling of the mean probabilities.

    Args:
        cases: scored cases.
        choice: a kind; "auto": the kind with the highest likelihood on patients left out, none if scaling does not
            raise it; "none".

    Returns:
        The scaling; None without one, and without pixels that raters labeled where foreground is likely.
    """
    check_scaling(choice)
    likely = [(case.votes * (case.probabilities > 0))[case.probabilities[:, 0] <= 1 - LIKELY] for case in cases]
    usable = [case for case, votes in zip(cases, likely, strict=True) if bool(votes.sum() > 0)]
    if choice == "none" or not usable:
        return None
    kinds = KINDS if choice == "auto" else tuple(kind for kind in KINDS if kind == choice)
    raw = [case.probabilities.double() for case in usable]
    tested = {kind: _scaled_elsewhere(usable, kind) for kind in kinds}
    losses = {kind: _loss(usable, found) for kind, found in tested.items()}
    best = min(kinds, key=lambda kind: losses[kind])
    if choice == "auto" and losses[best] >= _loss(usable, raw):
        return None
    slope, bias = _fit(usable, best)
    before, after = _error(usable, raw), _error(usable, tested[best])
    return Scaling(kind=best, slope=tuple(slope), bias=tuple(bias), ece_before=before, ece_after=after)


def _fit(cases: Sequence[CaseScores], kind: Kind) -> tuple[list[float], list[float]]:
    """Fit on the pixels that the calibration error counts."""
    p, votes = (torch.cat(parts) for parts in zip(*((c.probabilities, c.votes) for c in cases), strict=True))
    likely = p[:, 0] <= 1 - LIKELY
    return fit_scaling(p[likely], votes[likely], kind)


def _scaled_elsewhere(cases: Sequence[CaseScores], kind: Kind) -> list[Tensor]:
    """Probabilities "p l" of each case after a scaling that was fitted on other patients."""
    found: list[Tensor] = [torch.empty(0)] * len(cases)
    for others, part in folds([case.group for case in cases]):
        slope, bias = _fit([cases[i] for i in others], kind)
        for i in part:
            found[i] = scale_probabilities(cases[i].probabilities.double(), slope, bias)
    return found


def _loss(cases: Sequence[CaseScores], probabilities: Sequence[Tensor]) -> float:
    """Negative log-likelihood of the votes, summed; votes for a label of probability 0 are left out, as in the fit."""
    total = 0.0
    for case, p in zip(cases, probabilities, strict=True):
        counted = case.votes.double() * (case.probabilities > 0)
        total -= float((p.clamp_min(torch.finfo(torch.float64).tiny).log() * counted).sum())
    return total


def _error(cases: Sequence[CaseScores], probabilities: Sequence[Tensor]) -> float:
    """Calibration error of likely foreground."""
    bins = vote_bins(torch.cat(list(probabilities)), torch.cat([case.votes for case in cases]), at_least=LIKELY)
    return min(1.0, float(ece(bins))) if float(bins.count.sum()) > 0 else 0.0
