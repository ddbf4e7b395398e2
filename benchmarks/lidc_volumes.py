"""Nodules of LIDC as volumes: do intervals of the volume hold the raters' volumes, and how near are the samples?

python benchmarks/lidc_volumes.py lidc-3d data/lidc-nodules.h5
python benchmarks/lidc_volumes.py lidc data/lidc-nodules.h5 --slices independent

All nodules of the val patients with at least 3 slices, three sampling seeds. A model of slices samples the slices of a
nodule with the same noise, or independently. One row per seed: the fraction of the raters' volumes (in voxels) within
the central 90% of 32 samples, GED and HM-IoU of 16 samples as volumes, GED of the same samples slice by slice, the
standard deviation of the sampled volumes over their mean, and the probability of an empty sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import argument_parser, write_csv
from stochseg.analysis.measurement import Measurement
from stochseg.data import open_path
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory
from stochseg.metrics import ged, hm_iou
from stochseg.models import StochasticSegmenter, load
from stochseg.models.inputs import image_key
from stochseg.models.sampling import SamplingOptions, check_finite, cut_window, draw_samples, embed
from stochseg.networks import Condition
from stochseg.types import Example

MIN_SLICES = 3
SAMPLES, INTERVAL_SAMPLES = 16, 32


def sample(model: StochasticSegmenter, volume: Tensor, options: SamplingOptions, slices: str) -> Tensor:
    """Label maps "n d h w" of a volume "1 d h w"."""
    return next(sample_counts(model, volume, options, slices, [options.n]))


@torch.no_grad()
def sample_counts(
    model: StochasticSegmenter, volume: Tensor, options: SamplingOptions, slices: str, counts: Iterable[int]
) -> Iterator[Tensor]:
    """Label maps of `sample` for several numbers of samples; the image is encoded once."""
    options = options.or_default(model.default_sampling())
    whole = model.info.spatial_dims == 3
    images = volume[None] if whole else volume.transpose(0, 1)
    keys = [(options.seed, image_key(image if slices == "independent" else volume)) for image in images]
    window = model.window(*images.shape[2:])
    inner = cut_window(images, window)
    drawing = model.drawing(inner, keys, options)
    draw = partial(draw_samples, drawing, keys, inner.shape[2:], chunk=model.config.chunk, device=images.device)
    for n in counts:
        drawn = draw(options.model_copy(update={"n": n}), model.info)[n]
        labels = embed(check_finite(drawn), window, images.shape[2:]).labels
        yield labels[0] if whole else labels.transpose(0, 1)


def remember_encoding(model: StochasticSegmenter) -> None:
    """Let a model encode an image once for all seeds; with `first_maps`, also evaluate pure noise once."""

    def remembered(compute: Callable[..., Any]) -> Callable[..., Any]:
        last: list[Any] = []

        def once(image: Tensor, *rest: Any) -> Any:
            if not last or not torch.equal(last[0], image):
                last[:] = image, compute(image, *rest)
            return last[1]

        return once

    diffusion: Any = model
    diffusion.denoiser.encode = remembered(diffusion.denoiser.encode)
    if getattr(diffusion.config, "first_maps", None):
        propose_first: Callable[..., tuple[Tensor, Tensor]] = diffusion._propose_first
        last: list[Any] = []

        def propose_once(condition: Condition, *rest: Any) -> tuple[Tensor, Tensor]:
            if not last or last[0] is not condition:
                last[:] = condition, propose_first(condition, *rest)
            weights, maps = last[1]
            return weights, maps

        diffusion._propose_first = propose_once


def scores_of(
    model: StochasticSegmenter, example: Example, options: SamplingOptions, slices: str
) -> dict[str, float | list[float]]:
    """Scores of one nodule."""
    few, many = sample_counts(model, example.image, options, slices, (SAMPLES, INTERVAL_SAMPLES))
    sizes = many.flatten(1).sum(1).double().numpy()
    low, high = Measurement("volume", sizes, np.full(len(sizes), 1 / len(sizes))).interval(0.9)
    rated = example.raters.flatten(1).sum(1)
    return {
        "covered": ((low <= rated) & (rated <= high)).double().mean().item(),
        "ged": ged(few[None], example.raters[None], 2).item(),
        "hm_iou": hm_iou(few[None], example.raters[None], 2).item(),
        "slice_ged": ged(few.transpose(0, 1), example.raters.transpose(0, 1), 2).tolist(),
        "spread": sizes.std() / sizes.mean() if sizes.any() else 0.0,
        "empty": float((sizes == 0).mean()),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="bundled model, run or saved model")
    parser.add_argument("data", type=Path, help="packed store of nodules; its validation split is used")
    parser.add_argument("--slices", choices=("shared", "independent"), default="shared", help="noise of a 2-D model")
    parser.add_argument("--evaluations", type=int, nargs="*", default=[None], help="default: that of the model")
    parser.add_argument("--noise", default=None, help="default: that of the model")
    parser.add_argument("--limit", type=int, help="nodules, evenly spaced; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="number of sampling seeds")
    parser.add_argument("--engine", default="eager", help="engine of the networks")
    arguments = parser.parse_args()
    keep_freed_memory()
    model = load(arguments.model).eval()
    sampling = with_engine(model, arguments.engine)
    remember_encoding(sampling)
    data = open_path(arguments.data, "val")
    chosen = [i for i in range(len(data)) if data.space(i)[0] >= MIN_SLICES]  # type: ignore[attr-defined]
    if arguments.limit:
        chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, arguments.limit).round().astype(int)]
    rows: list[dict[str, object]] = []
    for evaluations in arguments.evaluations:
        each = [
            SamplingOptions(seed=seed, evaluations=evaluations, noise=arguments.noise)
            for seed in range(arguments.seeds)
        ]
        found: list[list[dict[str, float | list[float]]]] = [[] for _ in each]
        for done, i in enumerate(chosen, start=1):
            for options, scores in zip(each, found, strict=True):
                scores.append(scores_of(sampling, data[i], options, arguments.slices))
            if done % 20 == 0:
                print(f"{done} of {len(chosen)}: {[means(scores) for scores in found]}", flush=True)
        for options, scores in zip(each, found, strict=True):
            used = options.or_default(model.default_sampling())
            row: dict[str, object] = {
                "model": Path(arguments.model).name,
                "slices": "volume" if model.info.spatial_dims == 3 else arguments.slices,
                "noise": used.noise,
                "evaluations": used.evaluations,
                "seed": used.seed,
                "nodules": len(scores),
            }
            rows.append(row | means(scores))
            print(rows[-1], flush=True)
        path = write_csv(f"{Path(arguments.model).name}-volumes", rows, arguments.out)
    print(path)


def means(found: Sequence[dict[str, float | list[float]]]) -> dict[str, float]:
    """Means of the scores over nodules, those of slices over slices."""
    return {key: round(float(np.mean(np.hstack([one[key] for one in found]))), 4) for key in found[0]}


if __name__ == "__main__":
    main()
