"""Nodules of LIDC as volumes: do intervals of the volume hold the raters' volumes, and how near are the samples?

python benchmarks/lidc_volumes.py lidc-3d data/lidc-nodules.h5
python benchmarks/lidc_volumes.py lidc data/lidc-nodules.h5 --slices independent

All nodules of the val patients with at least 3 slices, three sampling seeds. A model of slices samples the slices of a
nodule with the same noise, or independently. One row per seed: the fraction of the raters' volumes (in voxels) within
the central 90% of 32 samples, GED and HM-IoU of 16 samples as volumes, GED of the same samples slice by slice, the
standard deviation of the sampled volumes over their mean, and the probability of an empty sample.
"""

from __future__ import annotations

from pathlib import Path

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
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Example

MIN_SLICES = 3
SAMPLES, INTERVAL_SAMPLES = 16, 32


@torch.no_grad()
def sample(model: StochasticSegmenter, volume: Tensor, options: SamplingOptions, slices: str) -> Tensor:
    """Label maps "n d h w" of a volume "1 d h w"."""
    options = options.or_default(model.default_sampling())
    if model.info.spatial_dims == 3:
        return model._draw(volume[None], [(options.seed, image_key(volume))], options, None)[options.n].labels[0]
    images = volume.transpose(0, 1)
    keys = [(options.seed, image_key(volume if slices == "shared" else image)) for image in images]
    return model._draw(images, keys, options, None)[options.n].labels.transpose(0, 1)


def scores_of(
    model: StochasticSegmenter, example: Example, options: SamplingOptions, slices: str
) -> dict[str, float | list[float]]:
    """Scores of one nodule."""
    few, many = (
        sample(model, example.image, options.model_copy(update={"n": n}), slices) for n in (SAMPLES, INTERVAL_SAMPLES)
    )
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
    data = open_path(arguments.data, "val")
    chosen = [i for i in range(len(data)) if data.space(i)[0] >= MIN_SLICES]  # type: ignore[attr-defined]
    if arguments.limit:
        chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, arguments.limit).round().astype(int)]
    rows: list[dict[str, object]] = []
    for evaluations in arguments.evaluations:
        for seed in range(arguments.seeds):
            options = SamplingOptions(seed=seed, evaluations=evaluations, noise=arguments.noise)
            found = [scores_of(sampling, data[i], options, arguments.slices) for i in chosen]
            used = options.or_default(model.default_sampling())
            row: dict[str, object] = {
                "model": Path(arguments.model).name,
                "slices": "volume" if model.info.spatial_dims == 3 else arguments.slices,
                "noise": used.noise,
                "evaluations": used.evaluations,
                "seed": seed,
                "nodules": len(found),
            }
            for key in found[0]:
                row[key] = round(float(np.mean(np.hstack([one[key] for one in found]))), 4)
            rows.append(row)
            print(row, flush=True)
            path = write_csv(f"{Path(arguments.model).name}-volumes", rows, arguments.out)
    print(path)


if __name__ == "__main__":
    main()
