"""What all benchmark scripts share: the hardware's name, the commit, the command, and the CSV they go to."""

from __future__ import annotations

import csv
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stochseg.evaluation.bench import cores, cpu_model, hardware

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def hardware_slug() -> str:
    """The hardware as part of a file name, such as "amd-epyc-2c"."""
    return f"{re.sub('[^a-z0-9]+', '-', cpu_model().lower()).strip('-')}-{cores()}c"


def commit() -> str:
    """Short hash of the checkout, "uncommitted" if there is none."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "uncommitted"
    return found.stdout.strip()


def command() -> str:
    """How this script was called, from the root of the checkout."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(name), *sys.argv[1:]])


def write_csv(name: str, rows: Sequence[Mapping[str, object]], out: Path | None = None) -> Path:
    """Write rows, with hardware, commit and command added, to `out` or results/<name>-<hardware>.csv."""
    path = out or RESULTS / f"{name}-{hardware_slug()}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    origin = {"hardware": hardware(), "commit": commit(), "command": command()}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], *origin], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **origin} for row in rows)
    return path


def timed(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds of the wall clock and of the CPU, after one call to warm up."""
    run()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(1e3 * (time.perf_counter() - wall))
        cpus.append(1e3 * (time.process_time() - cpu))
    return statistics.median(walls), statistics.median(cpus)
