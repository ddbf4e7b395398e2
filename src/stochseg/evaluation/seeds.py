"""Evaluation with several sampling seeds: means, deviations, and the values of each seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stochseg.data import SegmentationData
from stochseg.evaluation.evaluator import evaluate
from stochseg.evaluation.results import Evaluation
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.workers import Runner


def evaluate_seeds(
    model: StochasticSegmenter,
    data: SegmentationData,
    seeds: int,
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner[StochasticSegmenter] | None = None,
) -> Evaluation:
    """Evaluate a model with the sampling seeds `options.seed`, `options.seed` + 1, ….

    Args:
        model: the model.
        data: images with raters.
        seeds: their number.
        options: of sampling.
        limit: maximum number of images, evenly spaced; default: all.
        progress: called with (images done, images in total), over all seeds.
        runner: as in `evaluate`.

    Returns:
        The means of the metrics, with those of each seed; metrics that some seed lacks are left out. Kept
        samples and modes are of the first seed.

    Raises:
        UserError: as `evaluate`.

    >>> import stochseg
    >>> from stochseg.data import Phantoms
    >>> model = stochseg.create("unet-ce", base=8, multipliers=[1, 2], draw="pixels")
    >>> result = evaluate_seeds(model, Phantoms("val", size=16, count=2), 3, options=SamplingOptions(n=2))
    >>> list(result.seeds), len(result.images)
    ([0, 1, 2], 6)
    """
    found: dict[int, Evaluation] = {}
    for seed in range(options.seed, options.seed + seeds):

        def report(done: int, total: int, before: int = len(found)) -> None:
            if progress is not None:
                progress(before * total + done, seeds * total)

        own = options.model_copy(update={"seed": seed})
        found[seed] = evaluate(
            model, data, options=own, limit=limit, keep=0 if found else 4, progress=report, runner=runner
        )
    first, *others = found.values()
    settings = {**first.settings, "seeds": seeds}
    if not others:
        return replace(first, settings=settings)
    shared = [key for key in first.metrics if all(key in other.metrics for other in others)]
    metrics = {seed: {key: each.metrics[key] for key in shared} for seed, each in found.items()}
    return replace(
        first,
        settings=settings,
        metrics={key: float(np.mean([own[key] for own in metrics.values()])) for key in shared},
        images=[{"seed": seed, **row} for seed, each in found.items() for row in each.images],
        seeds=metrics,
    )
