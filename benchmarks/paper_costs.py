"""Count parameters and floating-point operations of every training of the paper, for `stochseg paper list`.

python benchmarks/paper_costs.py
"""

from __future__ import annotations

from pathlib import Path

from harness import argument_parser
from stochseg.experiments.paper import costs
from stochseg.experiments.paper.trainings import TRAININGS
from stochseg.files import write_csv


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    rows = []
    for data, row in TRAININGS:
        rows.append(costs.measure_row(data, row))
        print(*rows[-1].values())
    write_csv(arguments.out or Path(costs.__file__).with_name(costs.FILE), rows)


if __name__ == "__main__":
    main()
