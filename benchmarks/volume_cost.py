"""Core-seconds of 16 samples of a nodule of 8 slices: `lidc-3d` as one volume, `lidc` slice by slice with shared noise.

python benchmarks/volume_cost.py

Both models in one run, by turns, on one thread, with their default number of evaluations; a synthetic crop of 128×128
pixels, because the time does not depend on what is in it.

cpu_seconds: median of the CPU time; ratio: to `lidc`.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from harness import argument_parser, write_csv
from lidc_volumes import sample
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions

MODELS = ("lidc-3d", "lidc")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    volume = torch.rand(1, arguments.slices, 128, 128, generator=torch.Generator().manual_seed(0)) * 2 - 1
    models = {name: load(name).eval() for name in MODELS}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for repeat in range(arguments.repeats + 1):  # the first is to warm up
        for name, model in models.items():
            start = time.process_time()
            sample(model, volume, SamplingOptions(n=arguments.samples), "shared")
            seconds[name] += [time.process_time() - start] if repeat else []
    rows = []
    for name, model in models.items():
        row = {"model": name, "slices": arguments.slices, "samples": arguments.samples, "threads": 1}
        row["evaluations"] = model.default_sampling().evaluations
        cost = median(seconds[name])
        rows.append({**row, "cpu_seconds": round(cost, 2), "ratio": round(cost / median(seconds["lidc"]), 2)})
        print(rows[-1])
    print(write_csv("volume-cost", rows, arguments.out))


if __name__ == "__main__":
    main()
