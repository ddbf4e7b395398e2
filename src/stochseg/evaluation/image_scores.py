"""Scores of one image, from the IoU of all pairs of its samples and raters; computed in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stochseg.evaluation.compatibility import match_normalization, without_void_label
from stochseg.evaluation.data_scores import ImageSums, class_names, image_sums
from stochseg.metrics import (
    IoUBlocks,
    class_iou_blocks,
    diversity_from_iou,
    fused_dice,
    ged_from_iou,
    hm_iou_from_iou,
    iou_blocks,
    without_void,
)
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, DatasetInfo, Example, Samples, Truth


@dataclass(frozen=True)
class Case:
    """An image to score: its index in the data, its labeled example, the known truth if any; keep: its samples."""

    index: int
    example: Example
    truth: Truth | None
    keep: bool


@dataclass(frozen=True)
class ImageResult:
    """What an image adds to an evaluation.

    index: in the data; row: its metrics; sums: for the metrics of all images; modes: frequencies of the modes of the
    truth; kept: the image with its samples; place: device, engine and threads of the process.
    """

    index: int
    row: dict[str, Any]
    sums: ImageSums
    modes: Modes | None
    kept: tuple[Example, Samples] | None
    place: dict[str, Any]


@dataclass(frozen=True)
class Modes:
    """Modes of a known truth: their names, probabilities "m" and sampled frequencies "m"."""

    names: tuple[str, ...]
    probabilities: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class Scoring:
    """How images are sampled and scored.

    info: of the data; options: of sampling; counts: numbers of samples of GED and the like; fused: smaller numbers of
    samples to fuse into one map; independent: whether samples are independent; single: whether fused maps are scored.
    """

    info: DatasetInfo
    options: SamplingOptions
    counts: tuple[int, ...]
    fused: tuple[int, ...]
    independent: bool
    single: bool

    def __call__(self, model: StochasticSegmenter, cases: Sequence[Case]) -> Iterator[ImageResult]:
        """Sample and score images."""
        return (self._score(model, case) for case in cases)

    def _score(self, model: StochasticSegmenter, case: Case) -> ImageResult:
        example = case.example
        image = match_normalization(example.image, self.info, model.info)
        start = time.perf_counter()
        found = model.sample_counts(image[None], self.fused, self.options, allow_unusual_input=True)
        drawn = {n: without_void_label(part.to("cpu"), self.info) for n, part in found.items()}
        seconds, out = time.perf_counter() - start, drawn[self.options.n]
        batch, names = Batch.collate([example], self.info.ignore), class_names(self.info)
        row = {"id": example.id, **rater_scores(out, batch, self.counts, names, independent=self.independent)}
        if self.options.n > 1:
            row |= selective_scores(out, batch)
        modes = None
        if case.truth is not None:
            scores, frequency = truth_scores(out, case.truth, independent=self.independent)
            row |= scores
            modes = Modes(case.truth.names, case.truth.probabilities, frequency)
        row |= {"seconds_per_image": seconds, "evaluations_per_sample": float(out.evaluations)}
        sums = image_sums(drawn, example, self.info, fused=self.single)
        place = {"device": str(model.device), "engine": model.engine, "threads": torch.get_num_threads()}
        return ImageResult(case.index, row, sums, modes, (example, out) if case.keep else None, place)


def rater_scores(
    out: Samples, batch: Batch, counts: Sequence[int], names: Sequence[str], *, independent: bool
) -> dict[str, float]:
    """Compare samples with raters. What needs two samples is left out if there is one.

    Args:
        out: samples of one image.
        batch: the image, a batch of one.
        counts: numbers of samples; each score uses the first n. The last is that of all samples.
        names: of the classes; if there are more than two, each foreground class has a GED of its own.
        independent: whether the samples are independent draws, as the unbiased estimates assume.
    """
    classes = class_iou_blocks(*without_void(out.labels, batch.raters, batch.mask), out.num_classes)
    blocks = IoUBlocks.mean(classes)
    scores: dict[str, float] = {}
    for n in counts:
        part = blocks.first(n)
        weights = out.weights[:, :n].double()  # the metrics normalize them
        equal = bool((weights == weights[:, :1]).all())
        scores[f"ged_{n}"] = ged_from_iou(*part, weights=weights).item()
        scores[f"hm_iou_{n}"] = hm_iou_from_iou(part.samples_raters, weights=None if equal else weights).item()
        if n > 1:
            scores[f"diversity_{n}"] = diversity_from_iou(part.samples_samples, weights=weights).item()
    if independent and counts[-1] > 1:
        scores["ged_unbiased"] = ged_from_iou(*blocks, weights=out.weights, unbiased=True).item()
        diversity = diversity_from_iou(blocks.samples_samples, weights=out.weights, unbiased=True)
        scores["diversity_unbiased"] = diversity.item()
    for name, own in zip(names[1:], classes, strict=True) if len(classes) > 1 else ():
        scores[f"ged_{counts[-1]}/{name}"] = ged_from_iou(*own, weights=out.weights.double()).item()
    return scores


def selective_scores(out: Samples, batch: Batch) -> dict[str, float]:
    """Risk and confidence of the fused map of one image, by which images can be sent to a human.

    The confidence is that of `predict`: the mean Dice score with the samples, of the least certain class. It looks at
    the samples alone.
    """
    fused, weights = out.fused("mean"), out.weights[0].double()
    ours = fused_dice(fused, out.labels, out.num_classes)[0]
    theirs = fused_dice(fused, batch.raters, out.num_classes, batch.mask)[0]
    return {"risk": float(1 - theirs.mean()), "confidence": float((weights @ ours / weights.sum()).min())}


def truth_scores(out: Samples, truth: Truth, *, independent: bool) -> tuple[dict[str, float], Tensor]:
    """Compare samples with the known distribution; returns the scores and the sampled frequency "m" of each mode.

    A sample counts for the mode with which it has the highest IoU.
    """
    probabilities, weights = truth.probabilities.double(), out.weights[0].double()
    blocks = iou_blocks(out.labels, truth.modes[None], out.num_classes)
    best, index = blocks.samples_raters[0].max(1)
    frequency = torch.zeros(len(probabilities), dtype=torch.float64).index_add_(0, index, weights)
    scores: dict[str, float] = {}
    if independent and len(weights) > 1:
        distance = ged_from_iou(*blocks, weights=out.weights, rater_weights=probabilities[None], unbiased=True)
        scores["ged_truth_unbiased"] = distance.item()
    scores["mode_tv"] = (frequency - probabilities).abs().sum().item() / 2
    scores["mode_iou"] = float(weights @ best)
    return scores, frequency
