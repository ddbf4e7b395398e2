"""Evaluate a model on a data set: all metrics from one set of samples per image."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochseg._version import __version__
from stochseg.data import KnownTruth, SegmentationData, spread
from stochseg.errors import UserError
from stochseg.evaluation.compatibility import check_compatible, match_normalization
from stochseg.evaluation.image_scores import rater_scores, truth_scores
from stochseg.evaluation.results import Evaluation, ModeTable
from stochseg.metrics import CalibrationBins, brier_sums, calibration_bins, confusion_matrix, ece, foreground_bins, miou
from stochseg.metrics.calibration import LIKELY
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, Example, Samples, Truth

SAMPLE_COUNTS = (16, 32, 50, 100)
"""The n of GED_n and HM-IoU_n found in the literature."""

Sums = tuple[Tensor, CalibrationBins, CalibrationBins, Tensor]
"""Confusion matrix, calibration bins of all labels and of the foreground, Brier sums; they add up over images."""


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
    metrics assume independent samples; with Latin noise, only n = `options.n` is reported. Images whose pixels are all
    void are skipped.

    Args:
        model: the model.
        data: images with raters, of the classes and channels of the model.
        options: of sampling; n must be at least 2.
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
    check_counts(options, limit)
    if len(data) == 0:
        raise UserError("evaluate: the split is empty; choose another")
    check_compatible(model, data)
    model.check_options(options)
    settings = options.or_default(model.default_sampling())
    independent = model.independent and settings.noise == "independent"
    counts = sorted({n for n in SAMPLE_COUNTS if n <= options.n and independent} | {options.n})
    chosen = spread(len(data), len(data) if limit is None else limit)
    rows: list[dict[str, Any]] = []
    kept: list[tuple[Example, Samples]] = []
    sums: list[Sums] = []
    modes: list[tuple[Truth, Tensor]] = []
    for done, i in enumerate(chosen, start=1):
        example = data[i].rated(data.info.ignore)
        if len(example.raters) == 0:  # all void: no sample can be wrong
            continue
        image = match_normalization(example.image, data.info, model.info)
        start = time.perf_counter()
        out = model.sample(image[None], **options.model_dump(), allow_unusual_input=True).to("cpu")
        seconds = time.perf_counter() - start
        batch = Batch.collate([example], data.info.ignore)
        row = {"id": example.id, **rater_scores(out, batch, counts, independent=independent)}
        if isinstance(data, KnownTruth):
            truth = data.truth(i)
            scores, frequency = truth_scores(out, truth, independent=independent)
            row |= scores
            modes.append((truth, frequency))
        rows.append(row | {"seconds_per_image": seconds, "evaluations_per_sample": float(out.evaluations)})
        sums.append(_image_sums(out, batch, example, data.info.ignore))
        if on_image is not None:
            on_image(i, batch, out)
        if len(kept) < keep:
            kept.append((example, out))
        if progress is not None:
            progress(done, len(chosen))
    if not rows:
        raise UserError("evaluate: expected images with labeled pixels, got only void ones")
    metrics = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "id"} | _sum_metrics(sums)
    table = _mode_table(modes) if modes else None
    if table is not None:
        metrics["mode_tv_overall"] = float(abs(table.truth.mean(0) - table.frequency.mean(0)).sum() / 2)
    return Evaluation(metrics, rows, _facts(model, data, len(rows), settings), kept, table)


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


def check_counts(options: SamplingOptions, limit: int | None) -> None:
    """Raise a UserError unless there are enough samples and images to score."""
    if options.n < 2:
        raise UserError(f"scores need at least 2 samples per image, got {options.n}")
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


def _image_sums(out: Samples, batch: Batch, example: Example, ignore: int | None) -> Sums:
    fused = out.fused("mean")[0].expand_as(example.raters)
    return (
        confusion_matrix(fused, example.raters, out.num_classes, ignore),
        calibration_bins(out.mean, batch.raters, mask=batch.mask),
        foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY),
        torch.stack(brier_sums(out.mean, batch.raters, mask=batch.mask)),
    )


def _sum_metrics(sums: Sequence[Sums]) -> dict[str, float]:
    """Metrics of the whole data set from the sums of its images."""
    confusion, bins, foreground, brier = zip(*sums, strict=True)
    found = {"miou": miou(torch.stack(confusion).sum(0)).item(), "ece": ece(sum(bins[1:], start=bins[0])).item()}
    likely = sum(foreground[1:], start=foreground[0])
    if likely.count.sum() > 0:  # undefined if the model marks nothing anywhere
        found["ece_foreground"] = ece(likely).item()
    total, count = torch.cat(brier, dim=1).sum(1).tolist()
    return found | {"brier": total / count}


def _mode_table(modes: Sequence[tuple[Truth, Tensor]]) -> ModeTable:
    truth = np.array([truth.probabilities.double().tolist() for truth, _ in modes])
    frequency = np.array([frequency.tolist() for _, frequency in modes])
    return ModeTable(modes[0][0].names, truth, frequency)
