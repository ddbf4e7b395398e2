"""All methods on LIDC under one small budget: the table in docs/zoo.md.

OMP_NUM_THREADS=1 python benchmarks/compare.py data/lidc.h5 --runs runs/compare

Runs `stochseg compare` with the terms below: the center of the slices, where the nodule is; ten minutes of training on
one core, with one optimizer; 16 samples of 100 validation slices, with at most 10 network evaluations. All other
settings are those of the method: `flow-ssn` and `smp` have a weight decay, `car` a second network with its own learning
rate. Finished rows are kept in --runs: several processes can work on different methods, and a last call without methods
writes the table. The commit in the table is that of the last call; rows may be older.

With --own-settings every method has its own optimizer, batch size and number of evaluations, those of its authors as
far as they are known, the ten minutes are of the CPU's clock, and the table is of the methods named:

OMP_NUM_THREADS=1 python benchmarks/compare.py data/lidc.h5 prob-unet --own-settings --runs runs/own
"""

from __future__ import annotations

from pathlib import Path

from harness import argument_parser, write_csv
from stochseg.experiments.compare import compare
from stochseg.experiments.comparison import format_row, rank
from stochseg.models import MODELS
from stochseg.models.sampling import SamplingOptions

METHODS = (*MODELS, "smp:deeplabv3/resnet50")
BUDGET = "10m"
SAMPLES, LIMIT = 16, 100
DATA = ("data.options.center=64", "data.augment=flip-rotate")
TERMS = (
    *DATA,
    "batch_size=16",
    "optimizer=adam",
    "lr=5e-4",
    "final_lr=1e-5",
    "decay=cosine",
    "warmup=20",
    "ema=0.99",
    "clip=1",
    "precision=auto",
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of LIDC (stochseg data import lidc-slices …)")
    parser.add_argument("methods", nargs="*", help="train only these and write no table; default: all")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--own-settings", action="store_true", help="train each method as its authors did")
    arguments = parser.parse_args()
    own = arguments.own_settings
    rows = compare(
        arguments.methods or METHODS,
        arguments.data,
        BUDGET,
        arguments.runs,
        overrides=(*DATA, "clock=cpu") if own else TERMS,
        limit=LIMIT,
        options=SamplingOptions(n=SAMPLES, evaluations=None if own else 10),
        device="cpu",
    )
    if own or not arguments.methods:
        name = "own-settings-lidc" if own else "compare-lidc"
        print(write_csv(name, [format_row(row) for row in rank(rows)], arguments.out))


if __name__ == "__main__":
    main()
