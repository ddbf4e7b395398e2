"""Cost of a training step by the number of threads and by how they wait, on an idle and on a busy machine.

python benchmarks/threads.py

The recipe `phantom-tiny`, alone and next to one endless loop per core; a step without loops waits until no other
process runs. Every way has a process of its own, and all take turns; the ratios are against one thread in the same
turns, medians over them. `command` is what the command chooses (`stochseg.threads`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

WAYS: dict[str, dict[str, str]] = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "torch": {},
    "spin 2000": {"GOMP_SPINCOUNT": "2000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "command": {},
}
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def training_step() -> Callable[[], None]:
    import torch

    from stochseg.experiments.recipes import recipe
    from stochseg.models.registry import build
    from stochseg.training import open_split
    from stochseg.training.loop import OPTIMIZERS
    from stochseg.training.precision import Precision
    from stochseg.training.stream import TrainingStream

    config = recipe("phantom-tiny")
    data = open_split(config, "train")
    draw = TrainingStream(data, batch_size=config.batch_size, seed=config.seed)[0]
    torch.manual_seed(config.seed)
    model = build(config.model.name, data.info, config.model.options)
    optimizer = OPTIMIZERS[config.optimizer](model.parameters(), lr=config.lr)
    amp = Precision(config.precision, torch.device("cpu"))

    def step() -> None:
        with amp.autocast():
            loss = model(draw.batch.image, draw.batch.raters, keys=draw.keys)["loss"]
        optimizer.zero_grad(set_to_none=True)
        amp.backward(loss)
        amp.step(optimizer)

    return step


def serve(way: str) -> None:
    """Print the number of threads, then the seconds of a step, by the wall clock and the CPU, for every line read."""
    from stochseg.memory import keep_freed_memory
    from stochseg.threads import limit_threads

    if way == "command":
        limit_threads()
    keep_freed_memory()
    step = training_step()
    step()  # warms up

    import torch

    print(torch.get_num_threads(), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


class Worker:
    """A process that takes steps in one way."""

    def __init__(self, way: str):
        plain = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", way],
            env=plain | WAYS[way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.threads = int(self.process.stdout.readline())
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def step(self) -> None:
        print(file=self.process.stdin, flush=True)
        wall, cpu = map(float, self.process.stdout.readline().split())
        self.wall.append(wall)
        self.cpu.append(cpu)


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_until_idle() -> None:
    """Wait for a moment without other running processes, on a machine that has others."""
    from stochseg.threads import free_cores

    while free_cores() < (os.cpu_count() or 1):
        time.sleep(0.1)


def measure(loops: int, rounds: int) -> list[dict[str, object]]:
    with ExitStack() as stack:
        for _ in range(loops):
            stack.enter_context(running(subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)))
        workers = {}
        for way in WAYS:
            if not loops:
                wait_until_idle()
            workers[way] = Worker(way)
            stack.enter_context(running(workers[way].process))
        for _ in range(rounds):
            for worker in workers.values():
                if not loops:
                    wait_until_idle()
                worker.step()
    one = workers["one thread"]
    return [
        {
            "loops": loops,
            "way": way,
            "threads": worker.threads,
            "seconds": f"{statistics.median(worker.wall):.3f}",
            "core_seconds": f"{statistics.median(worker.cpu):.3f}",
            "fastest_seconds": f"{min(worker.wall):.3f}",
            "ratio_seconds": f"{_ratio(worker.wall, one.wall):.2f}",
            "ratio_core_seconds": f"{_ratio(worker.cpu, one.cpu):.2f}",
            "rounds": rounds,
        }
        for way, worker in workers.items()
    ]


def _ratio(values: list[float], base: list[float]) -> float:
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    parser.add_argument("--serve", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    from harness import write_csv

    rows: list[dict[str, object]] = []
    for loops in (0, os.cpu_count() or 1):
        rows += measure(loops, arguments.rounds)
        for row in rows[-len(WAYS) :]:
            print(row, flush=True)
    print(write_csv("threads", rows, arguments.out))


if __name__ == "__main__":
    main()
