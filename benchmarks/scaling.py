"""Cost of sampling by number of samples and image size: `ccdm-fast`, each measurement in a new process.

python benchmarks/scaling.py

The network and the sampling options are those of the bundled model `lidc` (8 components, Latin noise, 5 network
evaluations, the first shared by all samples), but without `focus`: the whole image is labeled. Weights are random,
which does not change the cost. core_seconds: CPU time, summed over cores; megabytes: rise of memory over the process
with the loaded model; process_megabytes: peak memory of the whole process, libraries included.
"""

from __future__ import annotations

import json
import subprocess
import sys

import torch

import harness
import stochseg
from stochseg.experiments.profiling import median_seconds, peak_memory
from stochseg.memory import keep_freed_memory

SIZES = (64, 128, 256, 512)
COUNTS = (1, 4, 16, 100)
MODEL = {"components": 8, "noise": "latin", "evaluations": 5}
BASE = (16, 128)
"""Number of samples and side to which the other rows are compared."""


def measure(samples: int, side: int, repeats: int) -> dict[str, float]:
    keep_freed_memory()  # as the command does
    model = stochseg.create("ccdm-fast", num_classes=2, image_channels=1, **MODEL).eval()
    image = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def work() -> object:
        return model.sample(image, samples)

    model.sample(image, 1)
    with peak_memory(model.device) as memory:
        work()
    _, core_seconds = median_seconds(work, repeats)
    return {
        "core_seconds": core_seconds,
        "megabytes": memory.rise,
        "process_megabytes": memory.peak,
    }


def main() -> None:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="timings, of which the median counts")
    parser.add_argument(
        "--only", type=int, nargs=2, metavar=("SAMPLES", "SIDE"), help="measure only this and print it as JSON"
    )
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(*arguments.only, arguments.repeats)))
        return
    found = {}
    for side in SIZES:
        for samples in COUNTS:
            call = [sys.executable, __file__, "--only", str(samples), str(side), "--repeats", str(arguments.repeats)]
            found[samples, side] = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
            print(samples, side, found[samples, side], flush=True)
    rows = []
    for (samples, side), row in found.items():
        times = samples * side**2 / (BASE[0] * BASE[1] ** 2)
        linear = row["core_seconds"] / found[BASE]["core_seconds"] / times
        rows.append(
            {
                "samples": samples,
                "side": side,
                "evaluations": MODEL["evaluations"],
                "core_seconds": round(row["core_seconds"], 4),
                "milliseconds_per_sample": round(1e3 * row["core_seconds"] / samples, 2),
                "over_linear": round(linear, 3),
                "megabytes": round(row["megabytes"], 1),
                "process_megabytes": round(row["process_megabytes"]),
                "threads": torch.get_num_threads(),
            }
        )
    print(harness.write_csv("scaling", rows, arguments.out))


if __name__ == "__main__":
    main()
