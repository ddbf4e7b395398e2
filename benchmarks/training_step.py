"""What a training step costs, by the numbers' precision and by the layout of the tensors in memory.

python benchmarks/training_step.py

The networks of `lidc-fast-s`, of the paper and two others of the zoo on 64×64, each with Adam. ratio is the CPU time
against the same network in float32 with the usual layout; the repeats of all four ways take turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from harness import median_seconds, write_csv
from stochseg.memory import keep_freed_memory
from stochseg.models import create
from stochseg.training.precision import Precision

NETWORKS = {"ccdm-fast": {"components": 8, "draws": 4}, "ccdm": {}, "unet-ce": {}, "prob-unet": {}}
PRECISIONS = ("float32", "bfloat16")
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def training_step(name: str, precision: str, layout: torch.memory_format, batch: int) -> Callable[[], None]:
    torch.manual_seed(0)
    model = create(name, 2, 1, **NETWORKS[name]).to(memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    image = torch.randn(batch, 1, 64, 64).to(memory_format=layout)
    labels = torch.randint(0, 2, (batch, 4, 64, 64))
    amp = Precision(precision, torch.device("cpu"))

    def step() -> None:
        with amp.autocast():
            loss = model(image, labels)["loss"]
        optimizer.zero_grad(set_to_none=True)
        amp.backward(loss)
        amp.step(optimizer)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    keep_freed_memory()
    ways = list(itertools.product(PRECISIONS, LAYOUTS))
    rows: list[dict[str, object]] = []
    for name in NETWORKS:
        steps = {way: training_step(name, way[0], LAYOUTS[way[1]], arguments.batch) for way in ways}
        taken: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for step in steps.values():
            step()  # the first one warms up
        for _ in range(arguments.repeats):
            for way, step in steps.items():
                taken[way].append(median_seconds(step, 1)[1])
        seconds = {way: statistics.median(values) for way, values in taken.items()}
        for way in ways:
            row = {"network": name, "precision": way[0], "layout": way[1], "batch": arguments.batch}
            row |= {"core_seconds": f"{seconds[way]:.3f}", "ratio": f"{seconds[way] / seconds[ways[0]]:.2f}"}
            print(row)
            rows.append(row)
    print(write_csv("training-step", rows, arguments.out))


if __name__ == "__main__":
    main()
