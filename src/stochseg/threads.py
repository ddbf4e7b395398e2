"""CPU threads of a process: no more than there are free cores.

The threads of an operation wait for each other by spinning: in OpenMP, and in oneDNN, whose barriers never sleep. If
another process occupies the core of one thread, the others burn CPU time until the scheduler resumes it. On a busy
machine a training step on two threads took ten times the CPU time of one thread (benchmarks/threads.py).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

_LOADAVG = Path("/proc/loadavg")
_SPIN_COUNT = "2000"
_READINGS, _PAUSE = 5, 0.01


def limit_threads() -> None:
    """Let torch use only the free cores, and let waiting threads sleep soon.

    Sets OMP_NUM_THREADS if other processes keep cores busy (Linux only), and GOMP_SPINCOUNT: 2,000 spins bridge the
    gap between two operations, while the default of 300,000 wastes most when a machine becomes busy later. The OpenMP
    runtimes of LLVM and Intel yield on busy cores and need no setting. Variables that the user has set stay. Torch
    reads them when it is imported, so nothing happens after that. The choice concerns the whole process and its
    children: the command makes it, the library does not.

    Note: the number of threads changes the last bits of gradients. Set OMP_NUM_THREADS for runs to repeat exactly.
    """
    if "torch" in sys.modules:
        return
    if not os.environ.get("OMP_WAIT_POLICY") and not os.environ.get("GOMP_SPINCOUNT"):
        os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    free = free_cores()
    if free < _physical_cores() and not os.environ.get("MKL_NUM_THREADS") and not os.environ.get("OMP_NUM_THREADS"):
        os.environ["OMP_NUM_THREADS"] = str(free)


def free_cores() -> int:
    """Number of cores without another running process, at least 1; all where the system does not report them."""
    running = []
    try:
        for _ in range(_READINGS):
            time.sleep(_PAUSE)
            running.append(int(_LOADAVG.read_text(encoding="utf-8").split()[3].split("/")[0]))
    except (OSError, IndexError, ValueError):
        return os.cpu_count() or 1
    others = int(statistics.median(running)) - 1  # this process is running, too
    return max(1, (os.cpu_count() or 1) - max(0, others))


def _physical_cores() -> int:
    """Number of cores that this process may use: the default of torch, which leaves out hyper-threads."""
    if not hasattr(os, "sched_getaffinity"):
        return 1
    siblings = (Path(f"/sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list") for i in os.sched_getaffinity(0))
    return len({file.read_text(encoding="utf-8") if file.exists() else str(file) for file in siblings})
