"""What sampling costs, and what quality it buys: seconds, network evaluations, FLOPs, memory, GED, HM-IoU."""

from __future__ import annotations

import gc
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from stochseg._version import __version__
from stochseg.data import SegmentationData
from stochseg.evaluation import evaluate
from stochseg.inference import with_engine
from stochseg.memory import release_freed_memory
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions


@dataclass(frozen=True)
class Case:
    """One way to sample: `model`, under its engine, with these options."""

    name: str
    model: StochasticSegmenter
    options: SamplingOptions = SamplingOptions()
    trained: bool = True

    @property
    def settings(self) -> SamplingOptions:
        """The options with the model's defaults."""
        return self.options.or_default(self.model.default_sampling())


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
"""What torch's own count of FLOPs leaves out."""


def cost(case: Case, size: tuple[int, int], *, repeats: int = 3) -> dict[str, Any]:
    """Time and memory of the samples of one random image of this size.

    evaluations: network calls a sample; evaluations_all_samples: maps that went through the network for all of them,
    fewer than the product where samples share the first call (blank for models that name no such network);
    seconds: median of the wall clock; core_seconds: the CPU's, over all its cores; core_seconds_all_steps: what all T
    steps of a diffusion model would take, told from the times of one step and of these (of one alone it cannot be);
    gemm_share: FLOPs a second over those of a large float32 matrix product measured here and now; peak_megabytes: how
    far memory rose; process_megabytes: the most that the whole process held meanwhile, with its libraries and what an
    engine keeps for itself.
    """
    model = case.model
    image = torch.rand(1, model.image_channels, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def work() -> Any:
        return model.sample(image, **case.options.model_dump())

    work()  # engines translate or compile the networks in their first call
    with peak_memory(model.device) as memory:
        out = work()
    seconds, core_seconds = median_seconds(work, repeats)
    settings, total = case.settings, model.max_evaluations
    evaluations, all_steps = settings.evaluations or 1, float("nan")
    if total is None or total == evaluations:
        all_steps = core_seconds
    elif evaluations > 1:
        single = case.options.model_copy(update={"evaluations": 1}).model_dump()
        _, first = median_seconds(lambda: model.sample(image, **single), repeats)
        all_steps = first + (core_seconds - first) * (total - 1) / (evaluations - 1)
    plain = with_engine(model, "eager")  # FLOPs and rows are seen of plain torch alone
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter, _rows_through(plain) as rows:
        plain.sample(image, **case.options.model_dump())
    gflop = counter.get_total_flops() / 1e9
    return {
        "model": case.name,
        "engine": model.engine,
        "sampler": settings.sampler or "",
        "grid": settings.grid or "",
        "noise": settings.noise or "",
        "evaluations": out.evaluations,
        "evaluations_all_samples": sum(rows) or "",
        "samples": settings.n,
        "height": size[0],
        "width": size[1],
        "seconds": round(seconds, 4),
        "core_seconds": round(core_seconds, 4),
        "core_seconds_all_steps": "" if math.isnan(all_steps) else round(all_steps, 3),
        "gflop": round(gflop, 3) or "",
        "gemm_share": round(gflop / seconds / gemm_gflops(model.device), 3) if gflop else "",
        "peak_megabytes": round(memory["rise"], 1),
        "process_megabytes": round(memory["process"], 1),
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
    }


@contextmanager
def _rows_through(model: StochasticSegmenter) -> Iterator[list[int]]:
    """The batch sizes of all calls of the network that is called most: the last of the accelerated modules."""
    rows: list[int] = []
    if not model.accelerated_modules:
        yield rows
        return

    def count(module: Any, inputs: Any, out: Any) -> None:
        rows.append(len(out if isinstance(out, torch.Tensor) else out[0]))

    hook = model.get_submodule(model.accelerated_modules[-1]).register_forward_hook(count)
    try:
        yield rows
    finally:
        hook.remove()


def quality(case: Case, data: SegmentationData, *, limit: int | None, seeds: int) -> dict[str, float | int | str]:
    """GED, HM-IoU and calibration on data, averaged over sampling seeds, and how much they vary between seeds; blanks
    for a model that was not trained."""
    samples = case.options.n
    keys = [f"ged_{samples}", f"hm_iou_{samples}", f"diversity_{samples}", "ged_unbiased", "ece", "brier"]
    deviation = f"{keys[0]}_deviation"
    row: dict[str, float | int | str] = dict.fromkeys(("images", "seeds", *keys, deviation), "")
    if not case.trained:
        return row
    runs = [
        evaluate(case.model, data, options=case.options.model_copy(update={"seed": seed}), limit=limit, keep=0)
        for seed in range(seeds)
    ]
    row |= {"images": runs[0].settings["images"], "seeds": seeds}
    for key in runs[0].metrics.keys() & set(keys):
        row[key] = round(float(np.mean([run.metrics[key] for run in runs])), 5)
    if seeds > 1:
        row[deviation] = round(float(np.std([run.metrics[keys[0]] for run in runs], ddof=1)), 5)
    return row


def origin() -> dict[str, str]:
    """Where numbers come from: hardware, versions, commit, command."""
    return {
        "hardware": hardware(),
        "torch": torch.__version__,
        "commit": commit(),
        "stochseg": __version__,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def commit() -> str:
    """Short hash of the checkout that this package is in, with -dirty if its code was changed since; "" if it is
    installed otherwise."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "src/stochseg").exists():
        return ""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def hardware() -> str:
    """CPU model and number of cores this process may use, such as "AMD EPYC, 2 cores"."""
    return f"{cpu_model()}, {cores()} {'core' if cores() == 1 else 'cores'}"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


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
        elif torch.backends.mps.is_available():
            torch.mps.synchronize()
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    return float(np.median(walls)), float(np.median(cores))


def gemm_gflops(device: torch.device, side: int = 1536) -> float:
    """What a large float32 matrix product reaches on this device now, in GFLOP/s."""
    a = torch.randn(side, side, device=device)
    a @ a
    return 2 * side**3 / 1e9 / median_seconds(lambda: a @ a, 3)[0]


@contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Fills {"rise": megabytes above where memory stood, "process": the most there was}: of the GPU, or of this process
    (Linux; elsewhere nan)."""
    found = {"rise": float("nan"), "process": float("nan")}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        highest = torch.cuda.max_memory_allocated(device)
        found.update(rise=(highest - before) / 2**20, process=highest / 2**20)
        return
    if not Path("/proc/self/statm").exists():
        yield found
        return
    gc.collect()
    release_freed_memory()  # what was freed before must not hide what is taken now
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
        highest = max(highest, _resident())
        found.update(rise=(highest - before) / 2**20, process=highest / 2**20)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
