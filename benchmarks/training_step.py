"""Time of a training step by precision and by memory layout of the tensors.

python benchmarks/training_step.py

The networks of `lidc-fast-s`, of the paper and of two other models on 64×64 pixels, each with Adam. ratio: CPU time
divided by that of the same network in float32 with the contiguous layout. The repeats of all variants alternate.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch

from harness import argument_parser, median_seconds, write_csv
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
    parser = argument_parser(__doc__)
    parser.add_argument("--batch", type=int, default=8, help="batch size")
    parser.add_argument("--repeats", type=int, default=7, help="timings, of which the median counts")
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
