"""Scores of one image, from the IoU of all pairs of its samples and raters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.metrics import (
    IoUBlocks,
    class_iou_blocks,
    diversity_from_iou,
    ged_from_iou,
    hm_iou_from_iou,
    iou_blocks,
    without_void,
)
from stochseg.types import Batch, Samples, Truth


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
