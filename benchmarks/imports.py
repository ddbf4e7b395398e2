"""CPU time of `import stochseg.metrics` and of other imports next to that of `import torch`.

Each import runs in fresh interpreters, in turn with the others; the best of the runs counts, because other programs on
the machine can only add to it. CPU time is that of user and system together.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import harness

STATEMENTS = {
    "torch": "import torch",
    "stochseg": "import stochseg",
    "stochseg.metrics": "import stochseg.metrics",
    "stochseg.metrics classes": "from stochseg.metrics import METRICS",
}


def main() -> None:
    args = _arguments()
    seconds = {name: float("inf") for name in STATEMENTS}
    for _ in range(args.repeats):
        for name, statement in STATEMENTS.items():
            seconds[name] = min(seconds[name], cpu_seconds(statement))
    rows = [
        {"import": name, "cpu_seconds": round(value, 3), "ratio": round(value / seconds["torch"], 3)}
        for name, value in seconds.items()
    ]
    for row in rows:
        print(f"{row['import']:<26} {row['cpu_seconds']:.3f} s  {row['ratio']:.2f} x torch")
    print("written:", harness.write_csv("imports", rows, args.out))


def cpu_seconds(statement: str) -> float:
    """User and system time of an interpreter that runs this statement."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
