"""Fit the calibration of a model on held-out cases; patients (groups) are the exchangeable unit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stochseg.analysis.margins import margin_scores
from stochseg.analysis.measurement import Measurement, check_confidence
from stochseg.analysis.measures import measure, measure_keys, measure_title
from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError, unknown_name
from stochseg.evaluation.compatibility import (
    check_compatible,
    check_volume_memory,
    match_normalization,
    without_void_label,
)
from stochseg.evaluation.evaluator import CaseReader
from stochseg.evaluation.fitting import CaseScores, Key, check_scaling, fit_intervals, fit_margins, fit_scale
from stochseg.evaluation.image_scores import Case
from stochseg.models import Calibration, StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, DatasetInfo, Example, Samples
from stochseg.workers import MAX_DEATHS, Runner, run_here

MAX_PIXELS = 20_000
"""Pixels of a case that scaling is fitted on; of more, as many at random."""
LEAST = 0.001
"""Pixels whose foreground has a smaller probability are not fitted on: plain background would hide the others."""
ScalingChoice = Literal["auto", "none", "temperature", "vector"]


def calibrate(
    model: StochasticSegmenter,
    data: SegmentationData,
    *,
    options: SamplingOptions = SamplingOptions(),
    measures: Sequence[str] = (),
    confidences: Sequence[float] = (0.9,),
    scaling: ScalingChoice = "auto",
    split: str = "val",
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner[StochasticSegmenter] | None = None,
) -> Calibration:
    """Fit scaling of probabilities, intervals of measurements and margins of outlines on held-out cases.

    Patients (the groups of the data) are the exchangeable unit: each counts the same, and its images and their raters
    may depend on each other in any way. What is reported about the fit is of patients that it left out, in turn.

    Args:
        model: the model, which must not have seen the data.
        data: images with raters.
        options: of sampling; the calibration holds for these.
        measures: names such as "area", or "area of nodule" for one class; default: all that apply, of all classes.
        confidences: of intervals and margins.
        scaling: of the mean probabilities; "auto" takes the one with the best likelihood on patients left out.
        split: name of the split, for the record.
        limit: maximum number of images, evenly spaced; default: all.
        progress: called with (images done, images in total).
        runner: runs the work on workers; default: in this process.

    Returns:
        The calibration; set `model.calibration` to it, or store it with `stochseg.models.store_calibration`.

    Raises:
        UserError: if the data do not fit the model, or for an impossible option.

    >>> import stochseg
    >>> from stochseg.data import Phantoms
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=8, multipliers=[1, 2])
    >>> found = calibrate(model, Phantoms("val", size=16, count=12), options=SamplingOptions(n=2), measures=["area"])
    >>> found.patients, [(each.measure, each.label) for each in found.intervals]
    (12, [('area', 1)])
    """
    for confidence in confidences:
        check_confidence(confidence)
    check_scaling(scaling)
    check_compatible(model, data)
    model.check_options(options)
    keys = choose_measures(measures, data.info)
    chosen = spread(len(data), len(data) if limit is None else limit)
    if not chosen:
        raise UserError("calibrate: the split is empty; choose another")
    check_volume_memory(data, chosen, options.n)
    reader = CaseReader(data, chosen, 0, with_samples=False)
    act, found = Scorer(data.info, options, tuple(keys)), list[CaseScores]()
    for scores in (runner or partial(run_here, lambda: model))(act, reader, _lost):
        found.append(scores)
        if progress is not None:
            progress(len(found) + reader.void, len(chosen))
    if not found:
        raise UserError("calibrate: expected images with labeled pixels, got only void ones")
    found.sort(key=lambda scores: scores.index)
    whole = data.info.num_classes == model.num_classes  # a label "void" of the model is not in the data
    return Calibration(
        data=data.info.name,
        data_sha256=reader.sha256.hexdigest(),
        split=split,
        patients=len({scores.group for scores in found}),
        cases=len(found),
        date=time.strftime("%Y-%m-%d"),
        sampling=options.or_default(model.default_sampling()),
        evaluations=found[0].evaluations,
        scaling=fit_scale(found, scaling) if whole else None,
        intervals=fit_intervals(found, keys, sorted(set(confidences))),
        margins=fit_margins(found, range(1, data.info.num_classes), sorted(set(confidences))),
    )


def choose_measures(names: Sequence[str], info: DatasetInfo) -> list[Key]:
    """Measures and classes by their names, such as "area" or "area of nodule"; all without names.

    Raises:
        UserError: for a measure or a class that the data do not have.
    """
    every = measure_keys(info)
    chosen: list[Key] = []
    for name in names:
        what, _, of = (name, "", "") if name in dict(every) else name.partition(" of ")
        classes = {**{each: label for label, each in enumerate(info.names)}, "foreground": None, "": -1}
        known = dict.fromkeys(each for each, _ in every)
        if what not in known:
            raise unknown_name("measure", what, known)
        if of not in classes:
            raise unknown_name(f"class of {name!r}:", of, info.names[1:])
        own = [key for key in every if key[0] == what and (not of or key[1] == classes[of])]
        # Two classes have one foreground, which is class 1.
        chosen += own or [key for key in every if key[0] == what and of == "foreground"]
    return list(dict.fromkeys(chosen)) or every


@dataclass(frozen=True)
class Scorer:
    """Samples cases and scores what calibration needs of them. info: of the data."""

    info: DatasetInfo
    options: SamplingOptions
    keys: tuple[Key, ...]

    def __call__(self, model: StochasticSegmenter, cases: Sequence[Case]) -> Iterator[CaseScores]:
        """Sample and score cases."""
        return (self._score(model, case) for case in cases)

    def _score(self, model: StochasticSegmenter, case: Case) -> CaseScores:
        example = case.example
        image = match_normalization(example.image, self.info, model.info)[None]
        drawn = model.sample(image, **self.options.model_dump(), allow_unusual_input=True).to("cpu")
        return score_case(case.index, example, without_void_label(drawn, self.info), self.info, self.keys)


def score_case(index: int, example: Example, samples: Samples, info: DatasetInfo, keys: Sequence[Key]) -> CaseScores:
    """Score the samples of one case.

    Void pixels count as background in measurements, of raters and samples; elsewhere they do not count. Raters whose
    map has no value, such as a ratio of what they do not mark, are left out of that measurement.
    """
    batch = Batch.collate([example], info.ignore)
    raters, mask = batch.raters[0], None if batch.mask is None else batch.mask[0]
    labels, weights = samples.labels[0], samples.weights[0].double().numpy()
    if mask is not None:
        void = ~mask.all(0)
        labels, raters = labels.masked_fill(void, 0), raters.masked_fill(void, 0)
    space, measured = example.spacing, dict[Key, tuple[Measurement, np.ndarray]]()
    for what, label in keys:
        ours, theirs = (measure(maps, what, label=label, spacing=space, info=info) for maps in (labels, raters))
        known = theirs.values[~np.isnan(theirs.values)]
        measured[what, label] = Measurement(ours.name, ours.values, weights / weights.sum(), ours.unit), known
    mean = samples.mean[0]
    margins = {
        label: margin_scores(
            mean[label].numpy(), (raters == label).numpy(), None if mask is None else mask.numpy(), space
        )
        for label in range(1, info.num_classes)
    }
    pixels = likely_pixels(mean, raters, mask, index)
    return CaseScores(index, example.group or example.id, measured, margins, *pixels, samples.evaluations)


def likely_pixels(mean: Tensor, raters: Tensor, mask: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """Probabilities "p l" of the pixels whose foreground is not plainly absent, and the raters' votes "p l" there.

    Args:
        mean: "l *space" probabilities.
        raters: "k *space" int64.
        mask: "k *space" bool, False = void; None if nothing is void.
        seed: of the choice where there are more than `MAX_PIXELS`; votes then have a weight, so that totals are kept.
    """
    classes, flat = len(mean), mean.flatten(1).T
    chosen = torch.nonzero(flat[:, 0] <= 1 - LEAST).flatten()
    weight = 1.0
    if len(chosen) > MAX_PIXELS:
        order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))[:MAX_PIXELS]
        weight, chosen = len(chosen) / MAX_PIXELS, chosen[order]
    maps = raters.flatten(1)[:, chosen]
    known = torch.ones_like(maps, dtype=torch.bool) if mask is None else mask.flatten(1)[:, chosen]
    votes = torch.stack([((maps == label) & known).sum(0) for label in range(classes)], 1)
    return flat[chosen].float(), votes.float() * weight


def _lost(case: Case) -> CaseScores:
    raise UserError(
        f"calibrate: the workers of image {case.example.id!r} died {MAX_DEATHS} times, perhaps for lack of memory; use "
        "fewer --workers"
    )


def summarize(calibration: Calibration, info: DatasetInfo) -> list[Mapping[str, object]]:
    """Rows of a table about intervals and margins: what was fitted, and how it holds on patients left out."""
    rows: list[Mapping[str, object]] = []
    for each in calibration.intervals:
        rows.append(
            {
                "what": measure_title(each.measure, each.label, info),
                "confidence": each.confidence,
                "offset": each.offset,
                "covered_before": each.covered_before,
                "covered": each.covered,
                "width_ratio": each.width_ratio,
            }
        )
    for margin in calibration.margins:
        rows.append(
            {
                "what": f"margin of {info.names[margin.label]}",
                "confidence": margin.confidence,
                "offset": margin.offset,
                "covered_before": None,
                "covered": margin.covered,
                "width_ratio": None,
            }
        )
    return rows
