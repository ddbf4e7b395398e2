"""Errors of readings and measurements of a trained model on phantoms whose truth is known.

Readings: every hypothesis counts for the true mode that its medoid overlaps most; the error of the probability of a
mode is averaged over modes and images. Measurements: the fraction of fresh raters inside the 90% intervals. The
phantoms have a seed that no recipe was tuned on. `oracle` draws from the truth itself: its errors are due to chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import stochseg
from harness import write_csv
from learning import fresh_phantoms
from stochseg.analysis import coverage
from stochseg.metrics import pairwise_iou
from stochseg.models import load
from stochseg.training.config import read_config
from stochseg.types import Truth

MEASURES = ("area", "longest diameter")


def raters(truth: Truth, count: int, seed: int) -> torch.Tensor:
    """Draw fresh raters of an image, "n h w"."""
    generator = torch.Generator().manual_seed(seed)
    return truth.modes[torch.multinomial(truth.probabilities, count, replacement=True, generator=generator)]


def mode_probabilities(maps: torch.Tensor, truth: Truth, num_classes: int) -> torch.Tensor:
    """Probability of each true mode, "m", by the hypotheses about the samples "n h w" of one image."""
    probabilities = torch.zeros(len(truth.modes), dtype=torch.float64)
    for reading in stochseg.hypotheses(maps):
        iou = pairwise_iou(reading.medoid[None, None], truth.modes[None], num_classes)
        probabilities[iou.argmax()] += reading.probability
    return probabilities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of `stochseg train phantom-tiny`, such as that of the demo")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--raters", type=int, default=100, help="fresh raters per image, for the intervals")
    parser.add_argument("--out", type=Path, help="CSV file; default: benchmarks/results/decisions-<hardware>.csv")
    arguments = parser.parse_args()

    model, data = load(arguments.run), fresh_phantoms(read_config(arguments.run / "train.yaml"))
    rows = []
    for sampler in ("model", "oracle"):
        errors, ours, theirs = [], {name: [] for name in MEASURES}, {name: [] for name in MEASURES}
        for i in range(arguments.images):
            truth = data.truth(i)
            if sampler == "model":
                maps = model.sample(data[i].image[None], arguments.samples, seed=0).labels[0]
            else:
                maps = raters(truth, arguments.samples, 2 * i)
            fresh = raters(truth, arguments.raters, 2 * i + 1)
            errors.append((mode_probabilities(maps, truth, model.num_classes) - truth.probabilities).abs())
            for name in MEASURES:
                ours[name].append(stochseg.measure(maps, name))
                theirs[name].append(stochseg.measure(fresh, name))
        row = {"sampler": sampler, "images": arguments.images, "samples": arguments.samples}
        row["probability_off"] = round(torch.stack(errors).mean().item(), 4)
        for name in MEASURES:
            found = coverage(ours[name], theirs[name], 0.9)
            row[f"covered_{name.replace(' ', '_')}"] = round(found.randomized, 4)
            row[f"covered_{name.replace(' ', '_')}_closed"] = round(found.closed, 4)
        rows.append(row)
        print(row, flush=True)
    print(write_csv("decisions", rows, arguments.out))


if __name__ == "__main__":
    main()
