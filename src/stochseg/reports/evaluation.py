"""Evaluate a model and write the page about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from stochseg.analysis.questions import Question
from stochseg.data import SegmentationData, Subset, spread
from stochseg.evaluation import Evaluation, evaluate, evaluations_curve
from stochseg.evaluation.evaluator import check_counts
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.reports.agreement import Agreement
from stochseg.reports.cases import Case, check_questions, draw_case, pick_cases
from stochseg.reports.run import Curve, RunFacts, RunPage
from stochseg.types import Spacing

CURVE = (2, 5, 10, 25)
"""Default numbers of network evaluations of the curve."""

Report = Callable[[str, int, int], None]
"""Called with (activity, done, total)."""


def report_run(
    model: StochasticSegmenter,
    data: SegmentationData,
    out: Path,
    facts: RunFacts,
    *,
    options: SamplingOptions = SamplingOptions(n=32),
    limit: int | None = 200,
    curve: Sequence[int] | None = None,
    curve_images: int = 20,
    spacing: Spacing | None = None,
    questions: Sequence[Question] = (),
    progress: Report | None = None,
) -> Evaluation:
    """Evaluate a model and write a page about it.

    All scores and pictures are of one set of samples, except the curve, which needs other samples.

    Args:
        model: the model.
        data: images with raters.
        out: the page.
        facts: title, what is scored, earlier evaluations, training log.
        options: of sampling.
        limit: maximum number of images, evenly spaced.
        curve: numbers of network evaluations of the curve; None: the default ones if the model has a choice; empty: no
            curve.
        curve_images: number of images of the curve.
        spacing: millimeters per pixel (row, column) of images that do not state them.
        questions: answered for the best, median and worst images.
        progress: called with (activity, done, total).

    Returns:
        The evaluation.

    Raises:
        UserError: if the data do not fit the model, or an option or question is impossible.
    """
    check_counts(options, limit)
    points = _curve_points(model, curve, options)
    report: Report = progress or (lambda *_: None)
    if questions and len(data) > 0:
        check_questions(data, spacing, questions)
    agreement = Agreement(model.num_classes)
    sampling = partial(report, "sampling")
    result = evaluate(model, data, options=options, limit=limit, on_image=agreement, progress=sampling)
    report("references", 0, 1)
    result = result.with_references(data, limit)
    report("references", 1, 1)
    picked, cases = pick_cases(result), []
    for done, (kind, row) in enumerate(picked, start=1):
        cases.append(Case(kind, row, draw_case(model, data, agreement.indices[row], options, spacing, questions)))
        report("cases", done, len(picked))
    place = spread(len(agreement.indices), curve_images)
    measured = _measure_curve(model, data, agreement, result, place, points, options, report) if points else None
    RunPage(facts, result, data.info, spacing=spacing, agreement=agreement, cases=cases, curve=measured).write(out)
    return result


def _curve_points(model: StochasticSegmenter, curve: Sequence[int] | None, options: SamplingOptions) -> list[int]:
    """Numbers of evaluations of the curve; requested ones must be possible."""
    for count in curve or ():
        model.check_options(options.model_copy(update={"evaluations": count}))
    if curve is not None:
        return sorted(set(curve))
    highest = model.max_evaluations or max(CURVE)
    return [count for count in CURVE if count <= highest] if "evaluations" in model.sampling_choices else []


def _measure_curve(
    model: StochasticSegmenter,
    data: SegmentationData,
    agreement: Agreement,
    result: Evaluation,
    rows: Sequence[int],
    points: Sequence[int],
    options: SamplingOptions,
    report: Report,
) -> Curve:
    """Measure the points of the curve on some rows of the evaluation; the point of the evaluation itself is free."""
    part = Subset(data, [agreement.indices[i] for i in rows])
    own = round(result.metrics["evaluations_per_sample"])
    keys = (f"ged_{options.n}", f"hm_iou_{options.n}")
    found: dict[int, Mapping[str, float]] = {
        own: {key: float(np.mean([result.images[i][key] for i in rows])) for key in keys}
    }
    for done, count in enumerate(points, start=1):
        if count != own:
            found |= evaluations_curve(model, part, [count], options=options)
        report("curve", done, len(points))
    sampler = options.sampler or model.default_sampling().sampler or model.name
    return Curve(sampler, found, len(part))
