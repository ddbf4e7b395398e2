"""One map out of several samples: mIoU of a data set against the number of samples and the rule that fuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch

from stochseg.data import SegmentationData, spread
from stochseg.evaluation.evaluator import for_model
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
    """mIoU of the fused map by (number of samples, rule), from the confusion matrix of the whole data set, at the
    resolution of the data; `counts` take the place of `options.n`."""
    rules: tuple[Fusion, ...] = get_args(Fusion)
    shape = (data.info.num_classes, data.info.num_classes)
    confusion = {(n, rule): torch.zeros(shape, dtype=torch.int64) for n in counts for rule in rules}
    chosen = spread(len(data), len(data) if limit is None else limit)
    for done, i in enumerate(chosen):
        example = data[i]
        image = for_model(example.image, data.info, model.info)[None]
        for n in counts:  # each drawn anew, since a mean is over all that are drawn
            out = model.sample(image, **{**options.model_dump(), "n": n}).to("cpu")
            for rule in rules:
                fused = out.fused(rule)[0].expand_as(example.raters)
                confusion[n, rule] += confusion_matrix(fused, example.raters, data.info.num_classes, data.info.ignore)
        if progress is not None:
            progress(done + 1, len(chosen))
    return {key: miou(counted).item() for key, counted in confusion.items()}
