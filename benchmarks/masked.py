"""Masked against uniform diffusion on phantoms, and masked diffusion given the labels of some pixels.

python benchmarks/masked.py

Both processes have the same network with a head of one map, training and number of evaluations. Besides
`model.options.process` only the distribution of t in training differs: a sample of masked diffusion takes its reading
where hardly a pixel is unmasked, so more of its draws are there (`t_power`). Rows of the kind "known" give each image
the labels of a random 5% of the pixels of its first rater (a draw from the known truth of the phantom), and compare
samples with two targets: that reading alone (`ged_16_reading`), and the distribution of readings given these labels
(`ged_16_given`: the modes of the truth that have them, with their probabilities divided by their sum). Samples without
these labels are compared with the same targets; the columns `..._over_unknown` are the quotients.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from harness import argument_parser, scores_of, write_csv
from stochseg import metrics
from stochseg.data import KnownTruth, SegmentationData, spread
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.models import StochasticSegmenter, load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, open_split, train

EVALUATIONS = 10
FRACTION = 0.05
N = 16
T_POWER = {"uniform": 2, "masked": 8}
SAMPLERS_OF = {"uniform": ("sticky",), "masked": ("sticky", "polished")}


def config_of(process: str, seed: int, overrides: Iterable[str]) -> TrainConfig:
    """The training of one row."""
    model = (
        f"process={process}",
        f"t_power={T_POWER[process]}",
        "components=1",
        "noise=independent",
        f"evaluations={EVALUATIONS}",
        "grid=entropy",
    )
    options = [f"model.options.{option}" for option in model]
    return recipe("phantom-tiny", [*options, f"seed={seed}", "steps=1000", "batch_size=32", *overrides])


def given_labels(
    model: StochasticSegmenter, data: SegmentationData, limit: int, fraction: float
) -> dict[str, float | int]:
    """Mean GED to the reading and to the readings that have the known labels, with and without these labels."""
    assert isinstance(data, KnownTruth)
    found = []
    for i in spread(len(data), limit):
        reading, truth = data[i].raters[0], data.truth(i)
        shown = torch.from_numpy(np.random.default_rng((5, i)).random(reading.shape) < fraction)
        known = torch.where(shown, reading, -1)
        fits = ((truth.modes == known) | ~shown).flatten(1).all(1)
        row = []
        for labels in (None, known):
            samples = model.sample(data[i].image[None], N, known=labels).labels
            row += [
                distance(samples, reading[None], torch.ones(1), model.num_classes),
                distance(samples, truth.modes, truth.probabilities * fits, model.num_classes),
            ]
        found.append(row)
    plain, plain_given, known, known_given = np.mean(found, 0).tolist()
    return {
        "ged_16_reading_unknown": round(plain, 4),
        "ged_16_reading": round(known, 4),
        "ged_16_reading_over_unknown": round(known / plain, 4),
        "ged_16_given_unknown": round(plain_given, 4),
        "ged_16_given": round(known_given, 4),
        "ged_16_given_over_unknown": round(known_given / plain_given, 4),
    }


def distance(samples: Tensor, maps: Tensor, weights: Tensor, num_classes: int) -> float:
    """GED of the samples "1 n h w" of an image to maps "m h w" with these weights "m"."""
    return metrics.ged(samples, maps[None], num_classes, rater_weights=weights[None]).item()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=Path, help="folder of the runs, which are resumed; default: a temporary folder")
    parser.add_argument("--seeds", type=int, default=3, help="trainings per process")
    parser.add_argument("--images", type=int, default=64, help="number of test phantoms")
    parser.add_argument("overrides", nargs="*", help="settings of the recipe, e.g. steps=500")
    arguments = parser.parse_args()
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="stochseg-masked-"))
    rows: list[dict[str, object]] = []
    for seed in range(arguments.seeds):
        for process in ("uniform", "masked"):
            config = config_of(process, seed, arguments.overrides)
            folder = train(config, runs / f"{process}-{seed}", resume=True, device="cpu", console=Console(stderr=True))
            model, data = load(folder), open_split(config, "test")
            about = {"process": process, "seed": seed, "steps": config.steps, "images": arguments.images}
            for sampler, grid in itertools.product(SAMPLERS_OF[process], ("trailing", "entropy")):
                options = SamplingOptions(n=N, sampler=sampler, grid=grid)
                result = evaluate(model, data, limit=arguments.images, options=options)
                truth = round(result.metrics["ged_truth_unbiased"], 4)
                how = {"kind": "samples", "sampler": sampler, "grid": grid}
                rows.append({**about, **how, **scores_of(result), "ged_truth": truth})
                print(rows[-1], flush=True)
            if process == "masked":
                known = given_labels(model, data, arguments.images, FRACTION)
                rows.append({**about, "kind": "known", "sampler": "sticky", "grid": "entropy", **known})
                print(rows[-1], flush=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(write_csv("masked", [{key: row.get(key, "") for key in columns} for row in rows], arguments.out))


if __name__ == "__main__":
    main()
