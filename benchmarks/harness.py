"""Shared by the benchmarks: CSV files with hardware, commit and command, columns of scores, timing, arguments."""

from __future__ import annotations

import argparse
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


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that shows the docstring of the script and has --out, the CSV file to write."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file; default: benchmarks/results/<name>-<hardware>.csv")
    return parser


def hardware_slug() -> str:
    """Hardware as part of a file name, such as "amd-epyc-2c"."""
    return f"{re.sub('[^a-z0-9]+', '-', cpu_model().lower()).strip('-')}-{core_count()}c"


def command() -> str:
    """Command of this script, from the root of the checkout."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(name), *sys.argv[1:]])


def write_csv(name: str, rows: Sequence[Mapping[str, object]], out: Path | None = None) -> Path:
    """Write rows with hardware, commit and command to `out`, by default results/<name>-<hardware>.csv.

    Rows of an earlier call that state these facts keep them.
    """
    facts = provenance()
    rows = [{**row, **{key: row.get(key, fact) for key, fact in facts.items()}} for row in rows]
    return write_rows(out or RESULTS / f"{name}-{hardware_slug()}.csv", rows)


def provenance() -> dict[str, str]:
    """Facts of every row: the hardware, the commit and the command."""
    return {"hardware": hardware(), "commit": commit(), "command": command()}


def scores_of(result: Evaluation) -> dict[str, float | str]:
    """Columns of a table of scores; blank if undefined, such as the unbiased GED with Latin noise."""
    return {key: round(result.metrics[key], 4) if key in result.metrics else "" for key in SCORES}


def timed(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds of the wall clock and of the CPU, after one call to warm up."""
    run()
    wall, cpu = median_seconds(run, repeats)
    return 1e3 * wall, 1e3 * cpu
