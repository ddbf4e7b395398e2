"""Evaluate a model on a data set: all metrics from one set of samples per image."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochseg._version import __version__
from stochseg.data import KnownTruth, SegmentationData, has_single_annotations, spread
from stochseg.errors import UserError
from stochseg.evaluation.compatibility import check_compatible, check_volume_memory, match_normalization
from stochseg.evaluation.data_scores import FUSED_COUNTS, DataScores, class_names
from stochseg.evaluation.image_scores import rater_scores, truth_scores
from stochseg.evaluation.results import Evaluation, ModeTable
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, Example, Samples, Truth

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
) -> Evaluation:
    """Draw samples of every image and compare them with the raters.

    GED_n and HM-IoU_n for every n of the literature up to `options.n` use the first n samples. They and the unbiased
    metrics assume independent samples; with Latin noise, only n = `options.n` is reported. For data with one label map
    per image, the maps fused from 1, 5, 10 and all samples are scored, too. Data with more than two classes have scores
    per class. Images whose pixels are all void are skipped.

    Args:
        model: the model.
        data: images with raters, of the classes and channels of the model.
        options: of sampling. A single sample has neither diversity nor unbiased scores.
        limit: maximum number of images, evenly spaced; default: all.
        keep: number of examples to keep with their samples, for pictures.
        on_image: called per image with its index in the data, a batch of one, and its samples.
        progress: called with (images done, images in total).

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
    _check_limit(limit)
    if len(data) == 0:
        raise UserError("evaluate: the split is empty; choose another")
    check_compatible(model, data)
    model.check_options(options)
    settings = options.or_default(model.default_sampling())
    independent = model.draws_independently(options)
    counts = sorted({n for n in SAMPLE_COUNTS if n <= options.n and independent} | {options.n})
    single = has_single_annotations(data)
    parts = [n for n in FUSED_COUNTS if n < options.n and independent and single]
    names, totals = class_names(data.info), DataScores(data.info, [*parts, options.n] if single else ())
    digest = hashlib.sha256()
    chosen = spread(len(data), len(data) if limit is None else limit)
    check_volume_memory(data, chosen, options.n)
    rows: list[dict[str, Any]] = []
    kept: list[tuple[Example, Samples]] = []
    modes: list[tuple[Truth, Tensor]] = []
    for done, i in enumerate(chosen, start=1):
        example = data[i]
        digest.update(example.id.encode(errors="surrogateescape"))  # the name of a file, which may not be UTF-8
        digest.update(example.image.numpy().tobytes() + example.raters.numpy().tobytes())
        example = example.rated(data.info.ignore)
        if len(example.raters) == 0:  # all void: no sample can be wrong
            if progress is not None:
                progress(done, len(chosen))
            continue
        image = match_normalization(example.image, data.info, model.info)
        start = time.perf_counter()
        found = model.sample_counts(image[None], parts, options, allow_unusual_input=True)
        drawn = {n: part.to("cpu") for n, part in found.items()}
        seconds, out = time.perf_counter() - start, drawn[options.n]
        batch = Batch.collate([example], data.info.ignore)
        row = {"id": example.id, **rater_scores(out, batch, counts, names, independent=independent)}
        if isinstance(data, KnownTruth):
            truth = data.truth(i)
            scores, frequency = truth_scores(out, truth, independent=independent)
            row |= scores
            modes.append((truth, frequency))
        rows.append(row | {"seconds_per_image": seconds, "evaluations_per_sample": float(out.evaluations)})
        totals.add(drawn, example, batch)
        if on_image is not None:
            on_image(i, batch, out)
        if len(kept) < keep:
            kept.append((example, out))
        if progress is not None:
            progress(done, len(chosen))
    if not rows:
        raise UserError("evaluate: expected images with labeled pixels, got only void ones")
    metrics = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "id"}
    metrics |= totals.metrics()
    table = _mode_table(modes) if modes else None
    if table is not None:
        metrics["mode_tv_overall"] = float(abs(table.truth.mean(0) - table.frequency.mean(0)).sum() / 2)
    facts = _facts(model, data, len(rows), settings) | {"data_sha256": digest.hexdigest()}
    return Evaluation(metrics, rows, facts, kept, table)


def evaluations_curve(
    model: StochasticSegmenter,
    data: SegmentationData,
    evaluations: Sequence[int],
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
) -> dict[int, dict[str, float]]:
    """Evaluate a model at several numbers of network evaluations.

    Args:
        model: an iterative model.
        data: images with raters.
        evaluations: network evaluations per sample, in place of `options.evaluations`.
        options: of sampling.
        limit: maximum number of images, evenly spaced; default: all.

    Returns:
        Metrics by the evaluations that were made; the corrector makes more than it is given.

    Raises:
        UserError: as `evaluate`.
    """
    chosen = [options.model_copy(update={"evaluations": count}) for count in evaluations]
    found = [evaluate(model, data, options=each, limit=limit, keep=0).metrics for each in chosen]
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


def _facts(model: StochasticSegmenter, data: SegmentationData, count: int, settings: SamplingOptions) -> dict[str, Any]:
    return {
        "model": model.name,
        "data": data.info.name,
        "images": count,
        **settings.model_dump(),
        "stochseg": __version__,
        "torch": torch.__version__,
        "device": str(model.device),
        "engine": model.engine,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def _mode_table(modes: Sequence[tuple[Truth, Tensor]]) -> ModeTable:
    truth = np.array([truth.probabilities.double().tolist() for truth, _ in modes])
    frequency = np.array([frequency.tolist() for _, frequency in modes])
    return ModeTable(modes[0][0].names, truth, frequency)
