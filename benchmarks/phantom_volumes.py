"""Volumes with a known distribution: frequencies of the modes, and whether the hypotheses are the modes.

python benchmarks/phantom_volumes.py runs/phantom-3d

Phantoms of a seed that no recipe was tuned on. `truth` draws from the distribution itself: its errors are chance.

mode_tv: total variation between the frequencies of the modes in the samples (each counts for its nearest mode) and
their probabilities, mean over volumes. mode_iou: of a sample with its nearest mode. probability_off: mean error of the
probability of a mode by the hypotheses. reading_iou: of the typical sample of a hypothesis with its nearest mode,
weighted by the probability of the hypothesis. found: fraction of the modes with a probability of at least 0.1 that are
nearest to a hypothesis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import stochseg
from decisions import raters
from harness import argument_parser, write_csv
from learning import fresh_phantoms
from stochseg.metrics import pairwise_iou
from stochseg.models import load
from stochseg.training.config import read_config
from stochseg.types import Truth

LIKELY = 0.1


def scores_of(maps: torch.Tensor, truth: Truth, num_classes: int) -> dict[str, float]:
    """Scores of the samples "n d h w" of one volume."""
    nearest = pairwise_iou(maps[None], truth.modes[None], num_classes)[0].max(1)
    frequencies = torch.bincount(nearest.indices, minlength=len(truth.modes)) / len(maps)
    readings = stochseg.hypotheses(maps)
    medoids = torch.stack([reading.medoid for reading in readings])
    overlap = pairwise_iou(medoids[None], truth.modes[None], num_classes)[0].max(1)
    weights = torch.tensor([reading.probability for reading in readings], dtype=torch.float64)
    probabilities = torch.zeros(len(truth.modes), dtype=torch.float64).index_add(0, overlap.indices, weights)
    likely = truth.probabilities >= LIKELY
    return {
        "mode_tv": (frequencies - truth.probabilities).abs().sum().item() / 2,
        "mode_iou": nearest.values.mean().item(),
        "probability_off": (probabilities - truth.probabilities).abs().mean().item(),
        "reading_iou": (weights @ overlap.values.double()).item() / weights.sum().item(),
        "found": (probabilities[likely] > 0).double().mean().item(),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, help="a run of `stochseg train phantom-3d`")
    parser.add_argument("--volumes", type=int, default=64)
    parser.add_argument("--samples", type=int, default=100)
    arguments = parser.parse_args()
    config = read_config(arguments.run / "train.yaml")
    model, data = load(arguments.run), fresh_phantoms(config)
    rows = []
    for sampler, noise in (("model", "latin"), ("model", "independent"), ("truth", "independent")):
        found = []
        for i in range(arguments.volumes):
            truth = data.truth(i)
            if sampler == "model":
                maps = model.sample(data[i].image[None], arguments.samples, seed=0, noise=noise).labels[0]
            else:
                maps = raters(truth, arguments.samples, 2 * i)
            found.append(scores_of(maps, truth, model.num_classes))
        row = {"sampler": sampler, "noise": noise, "steps": config.steps, "volumes": arguments.volumes}
        row |= {"samples": arguments.samples, "modes": len(truth.modes)}
        rows.append(row | {key: round(float(np.mean([each[key] for each in found])), 4) for key in found[0]})
        print(rows[-1], flush=True)
    print(write_csv("phantom-volumes", rows, arguments.out))


if __name__ == "__main__":
    main()
