"""Run every row of the paper's tables, and draw its figures, scaled down on synthetic data: a check of all experiments.

python benchmarks/paper_small.py runs/paper-small

It takes about an hour of one core; repeat the command to resume. The scores mean nothing.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from harness import argument_parser
from stochseg.experiments.paper import TABLES, RunSettings, format_table, run_rows
from stochseg.experiments.paper.figures import FIGURES, FigureSettings, draw_figure
from stochseg.experiments.paper.runner import SYNTHETIC
from stochseg.files import write_csv, write_text
from stochseg.plotting import write_figure


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", type=Path, help="folder of runs, tables and figures")
    parser.add_argument("--scale", type=float, default=1e-5)
    arguments = parser.parse_args()
    settings = RunSettings(arguments.runs, SYNTHETIC, seeds=1, scale=arguments.scale, device="cpu")
    filled = []
    for table in TABLES.values():
        run_rows(table, [], settings, Console())
        text = format_table(table, arguments.runs, "csv")
        write_text(arguments.runs / f"{table.name}.csv", text)
        lines = [line for line in text.splitlines() if ",ours," in line]
        filled.append(
            {"table": table.name, "cells": table.count_cells(), "rows": len(table.rows), "filled": len(lines)}
        )
        assert len(lines) == len(table.rows), f"{table.name}: rows without scores"
        print(filled[-1])
    for name, figure in FIGURES.items():
        store = arguments.runs / f"{figure.data}.h5"
        picture = draw_figure(name, FigureSettings(arguments.runs, store, seeds=1, images=2, device="cpu"))
        write_figure(picture, arguments.runs / f"{name}.png")
        print(f"{name}: drawn")
    write_csv(arguments.out or arguments.runs / "filled.csv", filled)


if __name__ == "__main__":
    main()
