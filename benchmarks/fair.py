"""The fair comparison on LIDC: the tables in docs/comparison.md.

OMP_NUM_THREADS=1 python benchmarks/fair.py data/lidc.h5 --runs runs/fair --workers 2

Runs the protocol `fair` of `stochseg compare` with the terms below. It takes days; each call continues where the last
one stopped. The scores of every image are committed (benchmarks/results/fair), so that a machine without --runs repeats
no stage that has its scores. With --table nothing is trained: the results that --runs holds replace the committed ones,
and the table and the chart in docs/images are written. Its hardware and commit are those of that call; trainings may be
older, and all were made on machines of this kind.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import RESULTS, ROOT, argument_parser, write_csv
from stochseg.data import SegmentationData
from stochseg.experiments.compare import method_config
from stochseg.experiments.fair import RATES, FairTerms, compare_fair
from stochseg.experiments.fair_table import table_cells, write_fair
from stochseg.experiments.method_sets import ABLATIONS, FAST, HEADS
from stochseg.models import MODELS
from stochseg.training import open_split
from stochseg.workers import open_pool

RATER_MODELS = ("pionono", "rater-confusion")
"""For named raters, whom LIDC does not have."""
RIVALS = tuple(name for name in MODELS if name not in ("ccdm-fast", *RATER_MODELS))
METHODS = (FAST, *RIVALS, *HEADS, *ABLATIONS)
IMAGES, IMAGES_OWN = 200, 50
# bfloat16 for all: the CPU computes in it, and `ccdm-fast` is trained in it anyway.
SETTINGS = ("data.options.center=64", "data.augment=flip-rotate", "precision=auto")
COMMITTED = RESULTS / "fair"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of LIDC (stochseg data import lidc-slices …)")
    parser.add_argument("methods", nargs="*", help="default: all")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--workers", type=int, help="processes, of one thread each; default: this one")
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    copy_results(COMMITTED, arguments.runs, replace=False)
    if not arguments.table:
        terms = FairTerms(arguments.data, images=IMAGES, images_own=IMAGES_OWN, overrides=SETTINGS)
        with open_pool(arguments.workers, None, "cpu") as pool:
            compare_fair(arguments.methods or METHODS, terms, arguments.runs, pool=pool)
    copy_results(arguments.runs, COMMITTED, replace=True)
    counts = IMAGES, IMAGES_OWN
    rows = write_fair(METHODS, val_slices(arguments.data), arguments.runs, image_counts=counts, pilots=len(RATES))
    shutil.copy2(arguments.runs / "fair-intervals.png", ROOT / "docs" / "images")
    print(write_csv("fair-lidc", table_cells(rows), arguments.out))


def val_slices(store: Path) -> SegmentationData:
    """The slices that are scored."""
    return open_split(method_config(FAST, SETTINGS, store, {}), "val")


def copy_results(source: Path, to: Path, *, replace: bool) -> None:
    """Copy the results of trainings, which are JSON files."""
    for file in [*source.glob("*.json"), *source.glob("*/*.json")]:
        target = to / file.relative_to(source)
        if replace or not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


if __name__ == "__main__":
    main()
