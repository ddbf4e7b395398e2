"""Evaluate a model on a data set: all metrics from one set of samples per image."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from stochseg.metrics import (
    CalibrationBins,
    brier_sums,
    calibration_bins,
    confusion_matrix,
    ece,
    foreground_bins,
    miou,
)
from stochseg.metrics.calibration import LIKELY
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
    _check(model, data, options, limit)
    settings = options.or_default(model.default_sampling())
    independent = model.independent and settings.noise == "independent"
    counts = sorted({n for n in SAMPLE_COUNTS if n <= options.n and independent} | {options.n})
    chosen = spread(len(data), len(data) if limit is None else limit)
    rows: list[dict[str, Any]] = []
    kept: list[tuple[Example, Samples]] = []
    totals, modes = _Totals(), _Modes()
    for done, i in enumerate(chosen, start=1):
        example = data[i].rated(data.info.ignore)
        if len(example.raters) == 0:  # all void: no sample can be wrong
            continue
        out, seconds = _draw(model, data, example, options)
        batch = Batch.collate([example], data.info.ignore)
        row = {"id": example.id, **rater_scores(out, batch, counts, independent=independent)}
        if isinstance(data, KnownTruth):
            row |= modes.add(out, data.truth(i), independent)
        rows.append(row | {"seconds_per_image": seconds, "evaluations_per_sample": float(out.evaluations)})
        totals.add(out, batch, example, data.info.ignore)
        if on_image is not None:
            on_image(i, batch, out)
        if len(kept) < keep:
            kept.append((example, out))
        if progress is not None:
            progress(done, len(chosen))
    if not rows:
        raise UserError("evaluate: expected images with labeled pixels, got only void ones")
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "id"}
    facts = _facts(model, data, len(rows), settings)
    return Evaluation(means | totals.metrics() | modes.metrics(), rows, facts, kept, modes.table())


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
    found = [
        evaluate(model, data, options=options.model_copy(update={"evaluations": count}), limit=limit, keep=0).metrics
        for count in evaluations
    ]
    return {round(metrics["evaluations_per_sample"]): metrics for metrics in found}


def _check(model: StochasticSegmenter, data: SegmentationData, options: SamplingOptions, limit: int | None) -> None:
    if options.n < 2:
        raise UserError(f"evaluate: expected at least 2 samples per image, got {options.n}")
    if len(data) == 0:
        raise UserError("evaluate: the split is empty; choose another")
    if limit is not None and limit < 1:
        raise UserError(f"evaluate: limit must be at least 1, got {limit}")
    check_compatible(model, data)
    model.check_options(options)


def _draw(
    model: StochasticSegmenter, data: SegmentationData, example: Example, options: SamplingOptions
) -> tuple[Samples, float]:
    """Draw the samples of an example; returns them and the seconds they took."""
    image = match_normalization(example.image, data.info, model.info)
    start = time.perf_counter()
    out = model.sample(image[None], **options.model_dump()).to("cpu")
    return out, time.perf_counter() - start


def _facts(
    model: StochasticSegmenter, data: SegmentationData, images: int, settings: SamplingOptions
) -> dict[str, Any]:
    return {
        "model": model.name,
        "data": data.info.name,
        "images": images,
        **settings.model_dump(),
        "stochseg": __version__,
        "torch": torch.__version__,
        "device": str(model.device),
        "engine": model.engine,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


@dataclass
class _Totals:
    """Sums over images, from which metrics of the whole data set are computed."""

    confusion: list[Tensor] = field(default_factory=list)
    bins: list[CalibrationBins] = field(default_factory=list)
    foreground: list[CalibrationBins] = field(default_factory=list)
    brier: list[Tensor] = field(default_factory=list)

    def add(self, out: Samples, batch: Batch, example: Example, ignore: int | None) -> None:
        fused = out.fused("mean")[0].expand_as(example.raters)
        self.confusion.append(confusion_matrix(fused, example.raters, out.num_classes, ignore))
        self.bins.append(calibration_bins(out.mean, batch.raters, mask=batch.mask))
        self.foreground.append(foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY))
        self.brier.append(torch.stack(brier_sums(out.mean, batch.raters, mask=batch.mask)))

    def metrics(self) -> dict[str, float]:
        found = {
            "miou": miou(torch.stack(self.confusion).sum(0)).item(),
            "ece": ece(sum(self.bins[1:], start=self.bins[0])).item(),
        }
        foreground = sum(self.foreground[1:], start=self.foreground[0])
        if foreground.count.sum() > 0:  # undefined if the model marks nothing anywhere
            found["ece_foreground"] = ece(foreground).item()
        total, count = torch.cat(self.brier, dim=1).sum(1).tolist()
        return found | {"brier": total / count}


@dataclass
class _Modes:
    """Frequencies of the known modes, one row per image; empty for data without a known truth."""

    names: tuple[str, ...] = ()
    truth: list[list[float]] = field(default_factory=list)
    frequency: list[list[float]] = field(default_factory=list)

    def add(self, out: Samples, truth: Truth, independent: bool) -> dict[str, float]:
        """Add an image; returns its scores."""
        scores, frequency = truth_scores(out, truth, independent=independent)
        self.names = truth.names
        self.truth.append(truth.probabilities.double().tolist())
        self.frequency.append(frequency.tolist())
        return scores

    def table(self) -> ModeTable | None:
        return ModeTable(self.names, np.array(self.truth), np.array(self.frequency)) if self.names else None

    def metrics(self) -> dict[str, float]:
        modes = self.table()
        if modes is None:
            return {}
        difference = modes.truth.mean(0) - modes.frequency.mean(0)
        return {"mode_tv_overall": float(abs(difference).sum() / 2)}
