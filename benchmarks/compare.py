"""All methods on LIDC under one small budget: the table in docs/zoo.md.

OMP_NUM_THREADS=1 python benchmarks/compare.py data/lidc.h5 --runs runs/compare

What it does is `stochseg compare` with the terms below, which are the same for all methods: the centre of the slices,
where the nodule is; ten minutes of one core of training each with one optimiser; 16 samples of 100 val slices, from at
most 10 denoising steps. So little time favours what learns fast: the table ranks methods by what they reach in it, not
by what they are at the end of a long training. Finished rows are kept in --runs; methods may be given to several calls
on several cores, and a last call with none writes the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import RESULTS, write_csv
from stochseg.evaluation.compare import as_text, compare, ranked

METHODS = (
    "ccdm-fast",
    "ccdm",
    "prob-unet",
    "hprob-unet",
    "phiseg",
    "ssn",
    "flow-ssn",
    "cflow",
    "car",
    "jprob-unet",
    "pixelseg",
    "mose",
    "analog-bits",
    "cimd",
    "unet-ce",
    "smp:deeplabv3/resnet50",
)
TERMS = (
    "data.options.centre=64",
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
    parser.add_argument("data", type=Path, help="the packed store of LIDC (stochseg data import lidc …)")
    parser.add_argument("methods", nargs="*", help="only these, and no table; default: all")
    parser.add_argument("--runs", type=Path, required=True, help="where finished rows are kept")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--out", type=Path, default=RESULTS / "compare-lidc.csv", help="CSV file")
    arguments = parser.parse_args()
    rows = compare(
        arguments.methods or METHODS,
        arguments.data,
        arguments.budget,
        arguments.runs,
        overrides=TERMS,
        limit=100,
        steps=10,
        device="cpu",
    )
    if not arguments.methods:
        print(write_csv("compare-lidc", [as_text(row) for row in ranked(rows)], arguments.out))


if __name__ == "__main__":
    main()
