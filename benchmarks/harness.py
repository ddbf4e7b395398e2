"""What all benchmark scripts share: the hardware's name, the commit, the command, and the CSV they go to."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stochseg.evaluation import Evaluation
from stochseg.experiments.profiling import median_seconds
from stochseg.experiments.provenance import commit, core_count, cpu_model, hardware
from stochseg.files import write_csv as write_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCORES = ("ged_16", "ged_unbiased", "hm_iou_16", "diversity_16", "miou", "ece", "ece_foreground", "brier")


def hardware_slug() -> str:
    """The hardware as part of a file name, such as "amd-epyc-2c"."""
    return f"{re.sub('[^a-z0-9]+', '-', cpu_model().lower()).strip('-')}-{core_count()}c"


def command() -> str:
    """How this script was called, from the root of the checkout."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(name), *sys.argv[1:]])


def write_csv(name: str, rows: Sequence[Mapping[str, object]], out: Path | None = None) -> Path:
    """Write rows, with hardware, commit and command added, to `out` or results/<name>-<hardware>.csv."""
    path = out or RESULTS / f"{name}-{hardware_slug()}.csv"
    origin = {"hardware": hardware(), "commit": commit(), "command": command()}
    write_rows(path, [{**row, **origin} for row in rows])
    return path


def scores_of(result: Evaluation) -> dict[str, float | str]:
    """The columns of a table of scores; blank where there is none, such as the unbiased GED of Latin noise."""
    return {key: round(result.metrics[key], 4) if key in result.metrics else "" for key in SCORES}


def timed(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds of the wall clock and of the CPU, after one call to warm up."""
    run()
    wall, cpu = median_seconds(run, repeats)
    return 1e3 * wall, 1e3 * cpu
