"""What sampling costs, and what quality it buys: seconds, network evaluations, FLOPs, memory, GED, HM-IoU."""

from __future__ import annotations

import gc
import os
import platform
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

from stochseg._version import __version__
from stochseg.core import CategoricalProcess, SeededNoise, cosine, draw_categorical
from stochseg.data import SegmentationData
from stochseg.evaluation.evaluate import evaluate
from stochseg.models import StochasticSegmenter


@dataclass(frozen=True)
class Case:
    """One way to sample: `model` runs under `engine`, with these options; None is the model's own default."""

    name: str
    model: StochasticSegmenter
    engine: str = "eager"
    sampler: str | None = None
    grid: str | None = None
    steps: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"steps": self.steps, "sampler": self.sampler, "grid": self.grid}

    def default(self, option: str) -> Any:
        """What the model takes where the case does not say."""
        return getattr(self, option) or getattr(self.model.config, option, None) or ""


def cost(case: Case, size: tuple[int, int], *, samples: int, repeats: int = 3) -> dict[str, Any]:
    """Time and memory of `samples` label maps of one random image of this size.

    seconds: median of the wall clock; core_seconds: the CPU's, over all its cores; core_seconds_all_steps: what all T
    steps of a diffusion model would take, by proportion; gemm_share: FLOPs a second over those of a large matrix
    product measured here and now.
    """
    from stochseg.inference import with_engine

    model = case.model
    image = torch.rand(1, model.image_channels, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def work() -> Any:
        return model.sample(image, samples, **case.options)

    work()  # engines translate or compile the networks in their first call
    with peak_memory(model.device) as memory:
        out = work()
    seconds, core_seconds = median_seconds(work, repeats)
    with FlopCounterMode(display=False) as counter:  # which sees plain torch alone
        with_engine(model, "eager").sample(image, samples, **case.options)
    gflop = counter.get_total_flops() / 1e9
    reverse = (out.evaluations - 1) * reverse_step_seconds(model, samples, size, repeats)
    total = getattr(model.config, "num_steps", out.evaluations)
    return {
        "model": case.name,
        "engine": case.engine,
        "sampler": case.default("sampler"),
        "grid": case.default("grid"),
        "evaluations": out.evaluations,
        "samples": samples,
        "height": size[0],
        "width": size[1],
        "seconds": round(seconds, 4),
        "core_seconds": round(core_seconds, 4),
        "core_seconds_all_steps": round(core_seconds * total / out.evaluations, 3),
        "gflop": round(gflop, 3) or "",
        "gemm_share": round(gflop / seconds / gemm_gflops(model.device), 3) if gflop else "",
        "reverse_share": round(reverse / seconds, 4),
        "peak_megabytes": round(memory["megabytes"], 1),
    }


def quality(
    case: Case, data: SegmentationData, *, samples: int, limit: int | None, seeds: int
) -> dict[str, float | int]:
    """GED, HM-IoU and calibration on data, averaged over sampling seeds, and how much they vary between seeds."""
    runs = [
        evaluate(case.model, data, samples=samples, limit=limit, seed=seed, keep=0, **case.options)
        for seed in range(seeds)
    ]
    keys = [f"ged_{samples}", "ged_unbiased", f"hm_iou_{samples}", f"diversity_{samples}", "ece", "brier"]
    row: dict[str, float | int] = {"images": runs[0].settings["images"], "seeds": seeds}
    for key in keys:
        values = [run.metrics[key] for run in runs]
        row[key] = round(float(np.mean(values)), 5)
        if key == keys[0] and seeds > 1:
            row[f"{key}_deviation"] = round(float(np.std(values, ddof=1)), 5)
    return row


def origin() -> dict[str, str]:
    """Where numbers come from: hardware, versions, command."""
    return {
        "hardware": hardware(),
        "torch": torch.__version__,
        "stochseg": __version__,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def hardware() -> str:
    """CPU model and number of cores this process may use, such as "AMD EPYC, 2 cores"."""
    return f"{cpu_model()}, {cores()} {'core' if cores() == 1 else 'cores'}"


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------------- measuring


def median_seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of the wall clock and of all cores together."""
    walls, cores = [], []
    for _ in range(repeats):
        wall, core = time.perf_counter(), time.process_time()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    return float(np.median(walls)), float(np.median(cores))


def reverse_step_seconds(model: StochasticSegmenter, batch: int, size: tuple[int, int], repeats: int) -> float:
    """Time of one exact jump and draw on the model's device, without the network."""
    process = CategoricalProcess(cosine(), model.num_classes)
    noise = SeededNoise([(i,) for i in range(batch)], model.device)
    x_t = process.prior((batch, *size), noise)
    log_p0 = torch.log_softmax(torch.randn(batch, model.num_classes, *size, device=model.device), 1)
    t, s = torch.full((batch,), 150), torch.full((batch,), 100)

    def step() -> None:
        draw_categorical(process.posterior(x_t, log_p0, t, s), noise.uniform(x_t.shape))

    return median_seconds(step, repeats)[0]


def gemm_gflops(device: torch.device, side: int = 1536) -> float:
    """What a large float32 matrix product reaches on this device now, in GFLOP/s."""
    a = torch.randn(side, side, device=device)
    a @ a
    return 2 * side**3 / 1e9 / median_seconds(lambda: a @ a, 3)[0]


@contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Fills {"megabytes": how far memory rose above where it stood}: of the GPU, or of this process (Linux; elsewhere
    nan)."""
    found = {"megabytes": float("nan")}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        found["megabytes"] = (torch.cuda.max_memory_allocated(device) - before) / 2**20
        return
    if not Path("/proc/self/statm").exists():
        yield found
        return
    gc.collect()
    before = highest = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found["megabytes"] = (max(highest, _resident()) - before) / 2**20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---------------------------------------------------------------------- the picture


def quality_against_cost(rows: Sequence[Mapping[str, Any]], *, n: int) -> Figure:
    """GED_n and HM-IoU_n against the seconds that n samples take (log scale), one line a model, engine and sampler; the
    number of network evaluations stands beside each point. The strided rule of the released code is dashed."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    lines: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault(tuple(str(row[key]) for key in ("model", "engine", "sampler", "grid")), []).append(row)
    for axis, key, title in zip(
        figure.subplots(1, 2),
        (f"ged_{n}", f"hm_iou_{n}"),
        (f"GED$_{{{n}}}$ (lower is better)", f"HM-IoU$_{{{n}}}$ (higher is better)"),
        strict=True,
    ):
        for (model, engine, sampler, grid), points in lines.items():
            points = sorted(points, key=lambda row: row["evaluations"])
            label = ", ".join(word for word in (model, sampler, grid, engine) if word and word != "eager")
            style = "s--" if sampler == "one_step_kernel" else "o-"
            axis.plot([p["seconds"] for p in points], [p[key] for p in points], style, label=label, markersize=4)
            for p in points:
                axis.annotate(
                    str(p["evaluations"]),
                    (p["seconds"], p[key]),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize=7,
                )
        axis.set(xscale="log", xlabel=f"seconds for {n} samples", title=title)
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return figure
