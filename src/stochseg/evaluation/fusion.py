"""mIoU of one map fused from several samples, by the number of samples and the rule that fuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch

from stochseg.data import SegmentationData, spread
from stochseg.evaluation.compatibility import match_normalization
from stochseg.metrics import confusion_matrix, miou
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions

Fusion = Literal["mean", "vote"]


def fusion_miou(
    model: StochasticSegmenter,
    data: SegmentationData,
    *,
    counts: Sequence[int] = (1, 5, 10),
    options: SamplingOptions = SamplingOptions(),
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[int, Fusion], float]:
    """Compute the mIoU of fused maps from the confusion matrix of the whole data set.

    Args:
        model: the model.
        data: images with raters.
        counts: numbers of samples per image, in place of `options.n`.
        options: of sampling.
        limit: maximum number of images, evenly spaced; default: all.
        progress: called with (images done, images in total).

    Returns:
        mIoU by (number of samples, rule): the mean of the probabilities or the majority vote.
    """
    rules: tuple[Fusion, ...] = get_args(Fusion)
    classes, ignore = data.info.num_classes, data.info.ignore
    confusion = {(n, rule): torch.zeros(classes, classes, dtype=torch.int64) for n in counts for rule in rules}
    chosen = spread(len(data), len(data) if limit is None else limit)
    for done, i in enumerate(chosen, start=1):
        example = data[i]
        image = match_normalization(example.image, data.info, model.info)[None]
        for n in counts:  # separate draws, because the mean is over all samples of a draw
            out = model.sample(image, **{**options.model_dump(), "n": n}, allow_unusual_input=True).to("cpu")
            for rule in rules:
                fused = out.fused(rule)[0].expand_as(example.raters)
                confusion[n, rule] += confusion_matrix(fused, example.raters, classes, ignore)
        if progress is not None:
            progress(done, len(chosen))
    return {key: miou(counted).item() for key, counted in confusion.items()}
