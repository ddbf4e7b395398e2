"""Evaluate a model on a data set: all metrics from one set of samples per image."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from stochseg._version import __version__
from stochseg.data import KnownTruth, OfRater, SegmentationData, has_single_annotations, of_rater, spread
from stochseg.errors import UserError
from stochseg.evaluation.compatibility import check_compatible, check_volume_memory
from stochseg.evaluation.data_scores import FUSED_COUNTS, data_metrics
from stochseg.evaluation.image_scores import Case, ImageResult, Modes, Scoring
from stochseg.evaluation.results import Evaluation, ModeTable
from stochseg.metrics import risk_coverage
from stochseg.models import StochasticSegmenter
from stochseg.models.raters import rater_number
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, Samples
from stochseg.workers import MAX_DEATHS, Runner, run_here

SAMPLE_COUNTS = (16, 32, 50, 100)
"""The n of GED_n and HM-IoU_n found in the literature."""


def evaluate(
    model: StochasticSegmenter,
    data: SegmentationData,
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
    keep: int = 4,
    on_image: Callable[[int, Batch, Samples], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner[StochasticSegmenter] | None = None,
) -> Evaluation:
    """Draw samples of every image and compare them with the raters, or with the one of `options.rater`.

    GED_n and HM-IoU_n for every n of the literature up to `options.n` use the first n samples. They and the unbiased
    metrics assume independent samples; with Latin noise, only n = `options.n` is reported. For data with one label map
    per image, the maps fused from 1, 5, 10 and all samples are scored, too. Data with more than two classes have scores
    per class. Images whose pixels are all void are skipped.

    Args:
        model: the model.
        data: images with raters, of the classes and channels of the model. A label "void" of the model is left out.
        options: of sampling. A single sample has neither diversity nor unbiased scores.
        limit: maximum number of images, evenly spaced; default: all.
        keep: number of examples to keep with their samples, for pictures.
        on_image: called per image with its index in the data, a batch of one, and its samples.
        progress: called with (images done, images in total).
        runner: runs the work on workers; the scores are the same to the last digit. Default: in this process.

    Returns:
        Metrics over all images and per image, with the settings.

    Raises:
        UserError: if the data do not fit the model or are empty, or for an impossible option.

    >>> import stochseg
    >>> from stochseg.data import Phantoms
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=8, multipliers=[1, 2])
    >>> result = evaluate(model, Phantoms("val", size=16, count=2), options=SamplingOptions(n=2))
    >>> len(result.images), result.metrics["diversity_2"]
    (2, 0.0)
    """
    data = rated_by(data, model, options)
    scoring, chosen = plan_scoring(model, data, options, limit)
    settings = options.or_default(model.default_sampling())
    reader = CaseReader(data, chosen, keep, with_samples=on_image is not None)
    found: list[ImageResult] = []
    for result in (runner or partial(run_here, lambda: model))(scoring, reader, stop_at_lost):
        if on_image is not None and result.kept is not None:
            example, samples = result.kept
            on_image(result.index, Batch.collate([example], data.info.ignore), samples)
            result = replace(result, kept=result.kept if result.index in reader.first else None)
        found.append(result)
        if progress is not None:
            progress(len(found) + reader.void, len(chosen))
    if not found:
        raise UserError("evaluate: expected images with labeled pixels, got only void ones")
    found.sort(key=lambda result: result.index)  # sums of floats depend on their order
    rows = [result.row for result in found]
    metrics = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "id"}
    metrics |= data_metrics([result.sums for result in found], data.info)
    if "risk" in metrics:
        metrics["aurc"] = risk_coverage([row["risk"] for row in rows], [row["confidence"] for row in rows]).area
    modes = [result.modes for result in found if result.modes is not None]
    table = _mode_table(modes) if modes else None
    if table is not None:
        metrics["mode_tv_overall"] = float(abs(table.truth.mean(0) - table.frequency.mean(0)).sum() / 2)
    facts = {
        "model": model.name,
        "data": data.info.name,
        "images": len(rows),
        **settings.model_dump(),
        "stochseg": __version__,
        "torch": torch.__version__,
        **found[0].place,
        "machine": platform.machine(),
        "data_sha256": reader.sha256.hexdigest(),
    }
    return Evaluation(metrics, rows, facts, [result.kept for result in found if result.kept is not None], table)


def plan_scoring(
    model: StochasticSegmenter, data: SegmentationData, options: SamplingOptions, limit: int | None
) -> tuple[Scoring, Sequence[int]]:
    """Choose how images are scored, and which: the indices of at most `limit` evenly spaced ones.

    Raises:
        UserError: as `evaluate`.
    """
    _check_limit(limit)
    if len(data) == 0:
        raise UserError("evaluate: the split is empty; choose another")
    check_compatible(model, data)
    model.check_options(options)
    independent = model.draws_independently(options)
    counts = sorted({n for n in SAMPLE_COUNTS if n <= options.n and independent} | {options.n})
    single = has_single_annotations(data)
    fused = [n for n in FUSED_COUNTS if n < options.n and independent and single]
    chosen = spread(len(data), len(data) if limit is None else limit)
    check_volume_memory(data, chosen, options.n)
    return Scoring(data.info, options, tuple(counts), tuple(fused), independent, single), chosen


def rated_by(data: SegmentationData, model: StochasticSegmenter, options: SamplingOptions) -> SegmentationData:
    """Return the data to score samples with: the maps of the rater whom the samples imitate, by default all.

    Args:
        data: the split.
        model: the model that draws.
        options: of sampling.

    Returns:
        The split, or a view of it.
    """
    if options.rater is None or isinstance(data, OfRater):
        return data
    return of_rater(data, model.rater_names[rater_number(options.rater, model.rater_names, model.name)])


class CaseReader:
    """Reads the images of an evaluation, in order: chunks of one, without those that are all void.

    void: number of images skipped so far, in which no sample can be wrong; first: indices of the first `keep` others;
    sha256: of all images read.
    """

    def __init__(self, data: SegmentationData, chosen: Sequence[int], keep: int, *, with_samples: bool):
        self.data, self.chosen, self.keep, self.with_samples = data, chosen, keep, with_samples
        self.void, self.first, self.sha256 = 0, list[int](), hashlib.sha256()

    def __iter__(self) -> Iterator[list[Case]]:
        for i in self.chosen:
            example = self.data[i]
            self.sha256.update(example.id.encode(errors="surrogateescape"))  # a file name, which may not be UTF-8
            self.sha256.update(example.image.numpy().tobytes() + example.raters.numpy().tobytes())
            example = example.rated(self.data.info.ignore)
            if len(example.raters) == 0:
                self.void += 1
                continue
            truth = self.data.truth(i) if isinstance(self.data, KnownTruth) else None
            if len(self.first) < self.keep:
                self.first.append(i)
            yield [Case(i, example, truth, self.with_samples or i in self.first)]


def stop_at_lost(case: Case) -> ImageResult:
    """Raise the error of an image that ended its workers: scores without it would not be those of the data."""
    raise UserError(
        f"evaluate: the workers of image {case.example.id!r} died {MAX_DEATHS} times, perhaps for lack of memory; use "
        "fewer --workers"
    )


def evaluations_curve(
    model: StochasticSegmenter,
    data: SegmentationData,
    evaluations: Sequence[int],
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
    runner: Runner[StochasticSegmenter] | None = None,
) -> dict[int, dict[str, float]]:
    """Evaluate a model at several numbers of network evaluations.

    Args:
        model: an iterative model.
        data: images with raters.
        evaluations: network evaluations per sample, in place of `options.evaluations`.
        options: of sampling.
        limit: maximum number of images, evenly spaced; default: all.
        runner: as in `evaluate`.

    Returns:
        Metrics by the evaluations that were made; the corrector makes more than it is given.

    Raises:
        UserError: as `evaluate`.
    """
    chosen = [options.model_copy(update={"evaluations": count}) for count in evaluations]
    found = [evaluate(model, data, options=each, limit=limit, keep=0, runner=runner).metrics for each in chosen]
    return {round(metrics["evaluations_per_sample"]): metrics for metrics in found}


def default_count(data: SegmentationData) -> int:
    """Samples per image unless a user chooses: those of the paper, 100, or 10 for images with one label map each."""
    return max(FUSED_COUNTS) if has_single_annotations(data) else max(SAMPLE_COUNTS)


def check_counts(options: SamplingOptions, limit: int | None) -> None:
    """Raise a UserError unless there are enough images, and two samples of each, to score."""
    if options.n < 2:
        raise UserError(f"scores need at least 2 samples per image, got {options.n}")
    _check_limit(limit)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}")


def _mode_table(modes: Sequence[Modes]) -> ModeTable:
    truth = np.array([each.probabilities.double().tolist() for each in modes])
    frequency = np.array([each.frequency.tolist() for each in modes])
    return ModeTable(modes[0].names, truth, frequency)
