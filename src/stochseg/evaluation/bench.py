"""What sampling costs: seconds, network evaluations, FLOPs, share of the reverse mathematics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from stochseg.core import CategoricalProcess, SeededNoise, cosine, draw_categorical
from stochseg.models import StochasticSegmenter


def bench(
    model: StochasticSegmenter, size: tuple[int, int], *, samples: int, steps: Sequence[int], repeats: int = 3
) -> list[dict[str, Any]]:
    """One row a number of steps: the median time of `samples` label maps of one random image of this size."""
    image = torch.rand(1, model.image_channels, *size, generator=torch.Generator().manual_seed(0), device="cpu") * 2 - 1
    rows = []
    for count in steps:
        with FlopCounterMode(display=False) as flops:
            out = model.sample(image, samples, steps=count)
        seconds = median_seconds(lambda count=count: model.sample(image, samples, steps=count), repeats)
        reverse = (out.evaluations - 1) * reverse_step_seconds(model, samples, size, repeats)
        rows.append(
            {
                "steps": out.evaluations,
                "samples": samples,
                "height": size[0],
                "width": size[1],
                "seconds": round(seconds, 4),
                "seconds_per_evaluation": round(seconds / out.evaluations, 5),
                "gflop": round(flops.get_total_flops() / 1e9, 3),
                "gflop_per_second": round(flops.get_total_flops() / 1e9 / seconds, 2),
                "reverse_share": round(reverse / seconds, 4),
            }
        )
    return rows


def reverse_step_seconds(model: StochasticSegmenter, batch: int, size: tuple[int, int], repeats: int) -> float:
    """Time of one exact jump and draw on the model's device, without the network."""
    process = CategoricalProcess(cosine(), model.num_classes)
    noise = SeededNoise([(i,) for i in range(batch)], model.device)
    x_t = process.prior((batch, *size), noise)
    log_p0 = torch.log_softmax(torch.randn(batch, model.num_classes, *size, device=model.device), 1)
    t, s = torch.full((batch,), 150), torch.full((batch,), 100)

    def step() -> None:
        draw_categorical(process.posterior(x_t, log_p0, t, s), noise.uniform(x_t.shape))

    return median_seconds(step, repeats)


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]
