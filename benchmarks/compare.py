"""All methods on LIDC under one small budget: the table in docs/zoo.md.

OMP_NUM_THREADS=1 python benchmarks/compare.py data/lidc.h5 --runs runs/compare

What it does is `stochseg compare` with the terms below: the center of the slices, where the nodule is; ten minutes of
one core of training each with one optimizer; 16 samples of 100 val slices, from at most 10 denoising steps. What the
terms do not name is a method's own: `flow-ssn` and `smp` have a weight decay, `car` a second network with a learning
rate of its own. Finished rows are kept in --runs; methods may be given to several calls on several cores, and a last
call with none writes the table, whose commit is that of this last call: rows may be of earlier ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import write_csv
from stochseg.experiments.compare import compare
from stochseg.experiments.comparison import format_row, rank
from stochseg.models import MODELS
from stochseg.models.sampling import SamplingOptions

METHODS = (*MODELS, "smp:deeplabv3/resnet50")
BUDGET = "10m"
TERMS = (
    "data.options.center=64",
    "data.augment=flip-rotate",
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the packed store of LIDC (stochseg data import lidc-slices …)")
    parser.add_argument("methods", nargs="*", help="only these, and no table; default: all")
    parser.add_argument("--runs", type=Path, required=True, help="where finished rows are kept")
    parser.add_argument("--out", type=Path, help="CSV file; default: benchmarks/results/compare-lidc-<hardware>.csv")
    arguments = parser.parse_args()
    rows = compare(
        arguments.methods or METHODS,
        arguments.data,
        BUDGET,
        arguments.runs,
        overrides=TERMS,
        limit=100,
        options=SamplingOptions(evaluations=10),
        device="cpu",
    )
    if not arguments.methods:
        print(write_csv("compare-lidc", [format_row(row) for row in rank(rows)], arguments.out))


if __name__ == "__main__":
    main()
