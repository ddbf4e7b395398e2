"""The best, median and worst images of an evaluation, each with a section of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stochseg.analysis.questions import Question
from stochseg.data import SegmentationData
from stochseg.errors import UserError
from stochseg.evaluation import Evaluation, match_normalization, without_void_label
from stochseg.inference.calibrated import usable_calibration
from stochseg.metrics import without_void
from stochseg.models import Calibration, StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting.pictures import intensities_to_rgb
from stochseg.reports.agreement import Agreement
from stochseg.reports.image import ImageReport
from stochseg.reports.page import Section, Table
from stochseg.reports.volume import VolumeReport
from stochseg.types import Batch, DatasetInfo, Example, Samples, Spacing

MAX_CASES = 2  # of the best, the median and the worst each


@dataclass(frozen=True, eq=False)
class Case:
    """An image to show. kind: "Best", "Median" or "Worst"; row: its row in the evaluation."""

    kind: str
    row: int
    image: ImageReport | VolumeReport


def pick_cases(result: Evaluation) -> list[tuple[str, int]]:
    """Pick (kind, row) of the best, median and worst images by GED, each image at most once."""
    key = f"ged_{result.settings['n']}"
    order = np.argsort([row[key] for row in result.images], kind="stable").tolist()
    count = min(MAX_CASES, len(order) // 3)
    middle = (len(order) - count) // 2
    kinds = {"Best": order[:count], "Median": order[middle : middle + count], "Worst": order[-count:]}
    if count == 0:  # of two images, one is the best; a single image counts as the worst
        kinds = {"Best": order[:-1], "Worst": order[-1:]}
    return [(kind, row) for kind, rows in kinds.items() for row in rows]


def draw_case(
    model: StochasticSegmenter,
    data: SegmentationData,
    index: int,
    options: SamplingOptions,
    spacing: Spacing | None = None,
    questions: Sequence[Question] = (),
) -> ImageReport | VolumeReport:
    """Draw the samples of one image again; they are the same, since they depend on seed, image and number only."""
    example = data[index].rated(data.info.ignore)
    image = match_normalization(example.image, data.info, model.info)[None]
    drawn = model.sample(image, **options.model_dump(), allow_unusual_input=True).to("cpu")
    samples = without_void_label(drawn, data.info)
    batch = Batch.collate([example], data.info.ignore)
    labels, raters = without_void(samples.labels, batch.raters, batch.mask)
    calibration, _ = usable_calibration(model, options)
    shown = replace(samples, labels=labels)
    return _report(example, shown, data.info, spacing, questions, raters[0], calibration)


def _report(
    example: Example,
    samples: Samples,
    info: DatasetInfo,
    spacing: Spacing | None,
    questions: Sequence[Question],
    raters: Tensor | None = None,
    calibration: Calibration | None = None,
) -> ImageReport | VolumeReport:
    """The report on an image or a volume of a data set. spacing: if the example does not state it."""
    raw = info.normalization.inverse(example.image.float()).movedim(0, -1).numpy()
    spacing, names = example.spacing or spacing, () if raters is None else example.rater_names
    if example.image.ndim == 4:
        return VolumeReport.of_samples(
            example.id,
            raw,
            samples,
            info,
            spacing=spacing,
            raters=raters,
            rater_names=names,
            questions=questions,
            calibration=calibration,
        )
    picture = intensities_to_rgb(raw)
    seen = example.id, picture, samples, info, spacing, raters, names
    return ImageReport(*seen, questions=questions, calibration=calibration)


def check_questions(data: SegmentationData, spacing: Spacing | None, questions: Sequence[Question]) -> None:
    """Raise UserError for questions that cannot be answered, by asking them about the raters of the first image."""
    example = data[0]
    raters = Batch.collate([example], data.info.ignore).raters
    k = raters.shape[1]
    mean = torch.nn.functional.one_hot(raters[0], data.info.num_classes).float().mean(0).movedim(-1, 0)[None]
    samples = Samples(raters, mean, torch.full((1, k), 1 / k), 0)
    image = _report(example, samples, data.info, spacing, questions)
    for question, answer in zip(questions, image.answers, strict=True):
        if answer is None:
            raise UserError(f"question {str(question)!r}: {example.id}: {image.problem_of(question)}")


def case_sections(cases: Sequence[Case], result: Evaluation, agreement: Agreement) -> list[Section]:
    """Build a table of the cases and one section per case."""
    n = result.settings["n"]
    rows, sections = [], []
    for number, case in enumerate(cases, start=1):
        scores, name = result.images[case.row], f"{case.kind}: {case.image.name}"
        samples, raters = agreement.sample_distance[case.row], agreement.rater_distance[case.row]
        values = (scores[f"ged_{n}"], scores[f"hm_iou_{n}"], samples, raters)
        rows.append([name, *("" if np.isnan(value) else f"{value:.3f}" for value in values)])
        of_raters = "" if np.isnan(raters) else f"; two raters differ by {raters:.3f}"
        text = f"GED of {n} samples: {values[0]:.3f}. Two samples differ by {samples:.3f} (1 − IoU){of_raters}."
        sections.append(case.image.section(name, text, f"case-{number}"))
    head = ["image", f"GED, n = {n}", f"HM-IoU, n = {n}", "two samples differ by", "two raters differ by"]
    contents = Section(
        "Best, median and worst images",
        f"By the GED of all {len(result.images)} images (lower is better); each has a section below.",
        table=Table(head, rows, [f"case-{i + 1}" for i in range(len(rows))]),
    )
    return [contents, *sections]
