"""Is there anything? A slice alone, and the same slice eight times as a volume: the answer must be the same.

python benchmarks/repeated_slices.py data/lidc-nodules.h5

Slices of val nodules, evenly spaced, 64 samples each with independent noise. `lidc-3d` samples a volume of one slice
and a volume of its copies; `lidc` samples the slice, and its copies with the same noise in all (the default of
`predict`) or with independent noise, which is wrong and shown as a control. One row per slice and way to sample.

alone, repeated: fraction of the samples with any foreground; standard_error: of their difference, from the binomial
distribution of 64 samples each, with (k + 1) / 66 as probability of k samples.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness import RESULTS, argument_parser, hardware_slug, write_csv
from lidc_volumes import sample
from stochseg.data import open_path
from stochseg.memory import keep_freed_memory
from stochseg.models import StochasticSegmenter, load
from stochseg.models.sampling import SamplingOptions

COPIES, SAMPLES = 8, 64
CASES = (("lidc-3d", "volume"), ("lidc", "shared"), ("lidc", "independent"))


def anything(model: StochasticSegmenter, volume: Tensor, how: str, seed: int) -> float:
    """Fraction of the samples of a volume "1 d h w" with any foreground."""
    options = SamplingOptions(n=SAMPLES, noise="independent", seed=seed)
    if how == "independent":  # equal slices would have equal noise, which depends on the image
        parts = [
            sample(model, part, options.model_copy(update={"seed": seed + i}), how)
            for i, part in enumerate(volume.split(1, 1))
        ]
        labels = torch.cat(parts, 1)
    else:
        labels = sample(model, volume, options, how)
    return float((labels > 0).flatten(1).any(1).double().mean())


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of nodules; its validation split is used")
    parser.add_argument("--limit", type=int, default=16, help="slices")
    parser.add_argument(
        "--control", action="store_true", help="also `lidc` with independent noise, which takes longest"
    )
    parser.add_argument("--model", help="measure this model alone; the rows of others in the CSV stay")
    arguments = parser.parse_args()
    keep_freed_memory()
    data = open_path(arguments.data, "val")
    places = [(i, j) for i in range(len(data)) for j in range(data.space(i)[0])]  # type: ignore[attr-defined]
    places = [places[k] for k in np.linspace(0, len(places) - 1, arguments.limit).round().astype(int)]
    cases = [case for case in CASES if case[0] == (arguments.model or case[0])]
    cases = cases if arguments.control else [case for case in cases if case[1] != "independent"]
    models = {name: load(name).eval() for name, _ in cases}
    rows = []
    for number, (i, j) in enumerate(places):
        example = data[i]
        alone = example.image[:, j : j + 1]
        for name, how in cases:
            # Seeds differ, so that the two fractions are independent of each other.
            first = anything(models[name], alone, how, 100 * number)
            second = anything(models[name], alone.expand(-1, COPIES, -1, -1).contiguous(), how, 100 * number + 50)
            p, q = ((SAMPLES * each + 1) / (SAMPLES + 2) for each in (first, second))
            error = np.sqrt((p * (1 - p) + q * (1 - q)) / SAMPLES)
            row = {
                "model": name,
                "slices": how,
                "slice": f"{example.id}-s{j:02d}",
                "copies": COPIES,
                "samples": SAMPLES,
            }
            row |= {"alone": round(first, 4), "repeated": round(second, 4), "standard_error": round(float(error), 4)}
            row["deviation"] = round((second - first) / float(error), 2)
            rows.append(row)
            print(row, flush=True)
    for name, how in cases:
        own = [row for row in rows if (row["model"], row["slices"]) == (name, how)]
        alone_mean, repeated_mean = (np.mean([row[key] for row in own]) for key in ("alone", "repeated"))
        error = np.sqrt(np.mean([row["standard_error"] ** 2 for row in own]) / len(own))
        near = sum(abs(row["deviation"]) < 1.96 for row in own)
        print(f"{name} {how}: {alone_mean:.3f}, {repeated_mean:.3f} ± {error:.3f}; within 1.96: {near} of {len(own)}")
    path = arguments.out or RESULTS / f"repeated-slices-{hardware_slug()}.csv"
    if arguments.model:
        with path.open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["model"] != arguments.model] + rows
    print(write_csv("repeated-slices", rows, path))


if __name__ == "__main__":
    main()
