"""Time of a training step of two rivals, now and as they were first written.

OMP_NUM_THREADS=1 python benchmarks/rival_steps.py

Batches of 16 images of 64×64 pixels, in bfloat16, on one core. `car` had a U-Net as its refiner, and all its networks
learned in every step; now its calibrated network learns alone first, and then its discriminator takes turns.
`hprob-unet` padded these images to 128×128. steps: within ten minutes, from the time of a step of each kind, weighted
by how often it occurs; ratio: to the steps before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness import argument_parser, median_seconds, write_csv
from stochseg.memory import keep_freed_memory
from stochseg.models import StochasticSegmenter, create
from stochseg.models.baselines.car import CAR, CARConfig
from stochseg.training.precision import Precision

BATCH, SIDE, SECONDS = 16, 64, 600
PRECISION = Precision("bfloat16", torch.device("cpu"))


def stepper(model: StochasticSegmenter, side: int) -> Callable[[], None]:
    """A function that takes a training step on random images."""
    model.train()
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=1e-4)
    image, labels = torch.randn(BATCH, 1, side, side), torch.randint(0, 2, (BATCH, 4, side, side))

    def step() -> None:
        with PRECISION.autocast():
            loss = model(image, labels)["loss"]
        optimizer.zero_grad(set_to_none=True)
        PRECISION.backward(loss)
        PRECISION.step(optimizer)

    return step


def core_seconds(step: Callable[[], None], repeats: int) -> float:
    for _ in range(3):  # the first ones warm up
        step()
    return median_seconds(step, repeats)[1]


def steps_of_car(model: CAR, repeats: int) -> float:
    """Steps within the time: F alone, then cycles in which D learns and pauses."""
    config, step = model.config, stepper(model, SIDE)
    if "updates" not in model._buffers:
        return SECONDS / core_seconds(step, repeats)
    learning, pausing = config.turns

    def seconds_at(update: int) -> float:
        model.updates.fill_(config.calibration_steps + update)
        return core_seconds(step, repeats)

    alone = seconds_at(-config.calibration_steps)
    cycle = learning * seconds_at(0) + pausing * seconds_at(learning)
    return config.calibration_steps + (SECONDS - config.calibration_steps * alone) / cycle * sum(config.turns)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timings, of which the median counts")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before: dict[str, Any] = dict(CARConfig.values_before)
    rows: list[dict[str, object]] = []
    steps = {
        "car": [steps_of_car(create("car", 2, 1, **options), repeats) for options in (before, {})],
        "hprob-unet": [
            SECONDS / core_seconds(stepper(create("hprob-unet", 2, 1), side), repeats) for side in (2 * SIDE, SIDE)
        ],
    }
    for name, (first, now) in steps.items():
        for form, count in (("first", first), ("now", now)):
            seconds = f"{SECONDS / count:.3f}"
            rows.append(
                {
                    "model": name,
                    "form": form,
                    "core_seconds_per_step": seconds,
                    "steps": round(count),
                    "ratio": f"{count / first:.1f}",
                }
            )
            print(rows[-1])
    print(write_csv("rival-steps", rows, arguments.out))


if __name__ == "__main__":
    main()
