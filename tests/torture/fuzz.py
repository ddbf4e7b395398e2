"""Fuzz all readers, configs, stores, checkpoints and commands; count what is not a clean refusal.

    python -m tests.torture.fuzz --seconds 600 --out fuzz.csv

Input i of a target depends on the seed, the target and i alone. A second call with the same file continues where the
first one stopped, and states its command. Inputs that fail are kept next to the file, with their tracebacks.
`max_cpu_seconds` is the time of the program for its slowest input, `max_seconds` that of the clock, during which other
processes may have had the CPU.
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import itertools
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from stochseg.errors import UserError
from stochseg.files import write_csv
from tests.torture.mutations import Target
from tests.torture.record import facts
from tests.torture.targets import make_targets

SECONDS = 10
"""An input that takes more seconds of the CPU is a hang, ..."""
WAITING = 120
"""... or more seconds of the clock, during which other processes may have the CPU."""
MEMORY = 10**9
"""An input that takes more bytes is a bomb."""
BATCH, TOGETHER = 200, 20
"""Inputs per row of the CSV that is written, and per message to the process that runs them."""
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory", "crash")


class Result(NamedTuple):
    """What became of an input, why, and its time by the clock and of the CPU."""

    outcome: str
    detail: str
    seconds: float
    cpu_seconds: float


def make_input(target: Target, name: str, seed: int, index: int) -> bytes:
    """Return input `index` of a target."""
    rng = random.Random(f"{seed} {name} {index}")
    return target.mutate(rng, rng.choice(target.seeds), target.seeds)


def run_input(target: Target, content: bytes) -> tuple[str, str]:
    """Read an input in this process; return the outcome and the traceback, if there is one."""
    try:
        target.read(content)
    except UserError:
        return "refused", ""
    except Exception:
        return "traceback", traceback.format_exc()
    return "accepted", ""


def _work(connection: Connection, scratch: Path) -> None:
    """Run inputs until the connection closes. Peak memory never falls, so the process ends after a bomb."""
    warnings.simplefilter("ignore")
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    os.chdir(scratch)  # commands write there
    targets = make_targets(scratch)
    connection.send(list(targets))
    while True:
        name, seed, indices = connection.recv()
        for index in indices:
            content = make_input(targets[name], name, seed, index)
            before, start, cpu = _peak(), time.monotonic(), _cpu()
            _limit_cpu()
            outcome, detail = run_input(targets[name], content)
            if _peak() - before >= MEMORY:
                outcome, detail = "memory", f"{_peak() - before:,} bytes"
            seconds = time.monotonic() - start
            # A process that lived through many inputs, such as that which inspects HDF5, counts when it ends.
            connection.send(Result(outcome, detail, seconds, min(_cpu() - cpu, seconds)))
            if outcome == "memory":
                return


def _limit_cpu() -> None:
    """Let the system end this process by SIGXCPU after `SECONDS` more of the CPU."""
    used, hard = time.process_time(), resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used) + SECONDS, hard))


def _cpu() -> float:
    """Seconds of the CPU of this process and of those that it has started and that have ended."""
    times = os.times()
    return sum(times[:4])


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Worker:
    """A process that runs inputs; it is replaced when it hangs, crashes or has grown."""

    def __init__(self, scratch: Path):
        self.scratch = scratch
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        self.process = context.Process(target=_work, args=(other, folder), daemon=True)
        self.process.start()
        other.close()
        self.targets: list[str] = self.connection.recv()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def run(self, name: str, seed: int, indices: range) -> Iterator[Result]:
        """Run inputs in the process, with a limit on the time of each."""
        while indices:
            self.connection.send((name, seed, indices))  # several, because a busy machine is slow to switch processes
            fine = True
            while indices and fine:
                result = self._receive()
                indices, fine = indices[1:], result.outcome not in ("hang", "memory", "crash")
                yield result
            if not fine:
                self.stop()
                self.start()

    def _receive(self) -> Result:
        start = time.monotonic()
        try:
            if self.connection.poll(WAITING):
                result: Result = self.connection.recv()
                return result
        except (EOFError, OSError):
            self.process.join()
            code, seconds = self.process.exitcode, time.monotonic() - start
            if code == -signal.SIGXCPU:
                return Result("hang", f"more than {SECONDS} s", seconds, float(SECONDS))
            return Result("crash", f"exit code {code}", seconds, 0.0)
        return Result("hang", f"more than {WAITING} s", float(WAITING), 0.0)


def fuzz(out: Path, seed: int, seconds: float, only: list[str]) -> Counter[str]:
    """Run batches of all targets in turn until the time is over, and add their counts to a CSV file."""
    total = Counter[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        worker = Worker(Path(scratch))
        end = time.monotonic() + seconds
        try:
            for name in itertools.cycle(only or worker.targets):
                start = time.monotonic()
                if start > end:
                    break
                total += _batch(worker, out, name, seed, min(end, start + seconds / 40))
        finally:
            worker.stop()
    return total


def _batch(worker: Worker, out: Path, name: str, seed: int, end: float) -> Counter[str]:
    rows = read_rows(out)
    row = rows.get((name, str(seed)), {})
    first, start, counts = int(row.get("inputs", 0)), time.monotonic(), Counter[str]()
    slowest, slowest_cpu = float(row.get("max_seconds", 0)), float(row.get("max_cpu_seconds", 0))
    for index in range(first, first + BATCH, TOGETHER):
        indices = range(index, index + TOGETHER)
        for i, result in zip(indices, worker.run(name, seed, indices), strict=True):
            slowest, slowest_cpu = max(slowest, result.seconds), max(slowest_cpu, result.cpu_seconds)
            counts[result.outcome] += 1
            if result.outcome not in ("accepted", "refused"):
                _keep(out, name, seed, i, result)
        if time.monotonic() > end:
            break
    totals = {key: int(row.get(key, 0)) + counts[key] for key in OUTCOMES}
    seconds = round(float(row.get("seconds", 0)) + time.monotonic() - start, 1)
    rows[name, str(seed)] = {
        "target": name,
        "seed": str(seed),
        "inputs": str(sum(totals.values())),
        **{key: str(count) for key, count in totals.items()},
        "seconds": str(seconds),
        "max_seconds": f"{slowest:.2f}",
        "max_cpu_seconds": f"{slowest_cpu:.2f}",
        **facts(),
    }
    write_csv(out, [rows[key] for key in sorted(rows)])
    return counts


def read_rows(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Read the rows of earlier calls by target and seed."""
    return {(row["target"], row["seed"]): row for row in csv.DictReader(out.open())} if out.exists() else {}


def _keep(out: Path, name: str, seed: int, index: int, result: Result) -> None:
    with out.with_suffix(".failures.txt").open("a") as stream:
        stream.write(f"=== {name} seed {seed} index {index}: {result.outcome}\n{result.detail}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, required=True, help="CSV file to append to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", default=[], help="only this target; repeatable")
    parser.add_argument("--show", type=int, help="run this input of the target in this process and print the outcome")
    options = parser.parse_args()
    if options.show is not None:
        faulthandler.enable()
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)  # commands write there
            target = make_targets(Path(scratch))[options.target[0]]
            content = make_input(target, options.target[0], options.seed, options.show)
            print(content[:2000])
            signal.alarm(60)
            print(*run_input(target, content), sep="\n")
        return
    total = fuzz(options.out, options.seed, options.seconds, options.target)
    print(", ".join(f"{total[key]:,} {key}" for key in OUTCOMES))
    if total["traceback"] + total["hang"] + total["memory"] + total["crash"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
