"""What label maps score that no model drew, on the images of benchmarks/compare.py: rows of the table in docs/zoo.md.

python benchmarks/references.py data/lidc.h5
"""

from __future__ import annotations

from pathlib import Path

from compare import DATA, LIMIT, SAMPLES
from harness import argument_parser, write_csv
from stochseg.evaluation import score_references
from stochseg.experiments.comparison import format_row, rank, with_references
from stochseg.experiments.recipes import recipe
from stochseg.training import open_split


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of LIDC (stochseg data import lidc-slices …)")
    arguments = parser.parse_args()
    data = open_split(recipe("unet-ce", DATA, arguments.data), "val")
    rows = with_references([], score_references(data, [SAMPLES], LIMIT), SAMPLES)
    print(write_csv("references-lidc", [format_row(row) for row in rank(rows)], arguments.out))


if __name__ == "__main__":
    main()
