"""Effect of keeping freed memory: 16 samples of one slice by the bundled model, in a process that keeps the memory its
tensors free and in one that does not.

python benchmarks/memory.py

core_seconds is the CPU time over all cores, system_seconds the part of it spent by the operating system, mostly on
filling pages; both are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

import harness
import stochseg
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory


def measure(engine: str, repeats: int) -> dict[str, float]:
    model = with_engine(stochseg.load("lidc"), engine)
    image = torch.rand(1, 1, 128, 128, generator=torch.Generator().manual_seed(0)) * 2 - 1
    user, system = [], []
    for _ in range(repeats + 1):
        before = os.times()
        model.sample(image, 16, evaluations=10)
        after = os.times()
        user.append(after.user - before.user)
        system.append(after.system - before.system)
    return {
        "user": statistics.median(user[1:]),
        "system": statistics.median(system[1:]),
    }  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    parser.add_argument("--only", nargs=2, metavar=("KEEP", "ENGINE"), help="print one row as JSON")
    arguments = parser.parse_args()
    if arguments.only:
        keep, engine = arguments.only
        if keep == "kept" and not keep_freed_memory():
            raise SystemExit("this needs glibc")
        print(json.dumps(measure(engine, arguments.repeats)))
        return
    rows: list[dict[str, object]] = []
    for engine in ("eager", "bfloat16", "onnx"):
        taken = {}
        for keep in ("given back", "kept"):
            call = [sys.executable, __file__, "--only", keep, engine, "--repeats", str(arguments.repeats)]
            found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
            taken[keep] = found["user"] + found["system"]
            rows.append(
                {
                    "engine": engine,
                    "freed memory": keep,
                    "core_seconds": round(taken[keep], 4),
                    "system_seconds": round(found["system"], 4),
                    "ratio": round(taken[keep] / taken["given back"], 3),
                    "threads": torch.get_num_threads(),
                }
            )
            print(rows[-1], flush=True)
    print(harness.write_csv("memory", rows, arguments.out))


if __name__ == "__main__":
    main()
