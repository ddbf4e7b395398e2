"""Profiling: time, memory and floating-point operations."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from stochseg.memory import release_freed_memory

STATM = Path("/proc/self/statm")


def median_seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Measure the median wall-clock seconds and CPU seconds (summed over cores) of a function."""
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
    """Measure the GFLOP/s of a large float32 matrix product on this device."""
    a = torch.randn(side, side, device=device)
    a @ a
    return 2 * side**3 / 1e9 / median_seconds(lambda: a @ a, 3)[0]


def flop_counter() -> FlopCounterMode:
    """Make a counter of floating-point operations; unlike torch's default, it counts attention on the CPU."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={attention: _attention_flops})


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return cast(int, sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]  # torch has no types here


@dataclass
class MemoryUse:
    """Megabytes, nan where they cannot be read. rise: above the level at the start; peak: highest level."""

    rise: float = math.nan
    peak: float = math.nan

    def set_bytes(self, start: int, highest: int) -> None:
        self.rise, self.peak = (highest - start) / 2**20, highest / 2**20


@contextmanager
def peak_memory(device: torch.device) -> Iterator[MemoryUse]:
    """Measure the memory of a block: that of the GPU, or on Linux that of the whole process. Filled in at the end."""
    use = MemoryUse()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        yield use
        use.set_bytes(start, torch.cuda.max_memory_allocated(device))
        return
    if not STATM.exists():
        yield use
        return
    gc.collect()
    release_freed_memory()  # otherwise memory freed earlier would hide a rise
    start = highest = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield use
    finally:
        done.set()
        watcher.join()
        use.set_bytes(start, max(highest, _resident()))


def _resident() -> int:
    return int(STATM.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
