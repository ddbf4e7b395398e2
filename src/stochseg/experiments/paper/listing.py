"""Lists of the paper's tables, rows and figures for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from stochseg.experiments.paper.costs import SUSTAINED_TFLOPS, cost
from stochseg.experiments.paper.figures import FIGURES
from stochseg.experiments.paper.published import TABLES, find_table
from stochseg.experiments.paper.trainings import DATA


def list_tables() -> Table:
    """Build the list of all tables and figures."""
    caption = f"GPU-hours: all rows, one seed, at {SUSTAINED_TFLOPS:g} TFLOP/s"
    out = Table(title="Tables and figures of the CCDM paper", caption=caption)
    out.add_column("name", no_wrap=True)
    out.add_column("shows")
    out.add_column("values", justify="right")
    out.add_column("GPU-hours", justify="right")
    for table in TABLES.values():
        hours = sum(cost(table.data, row).gpu_hours for row in table.trainings())
        out.add_row(table.name, table.title, str(table.count_cells()), f"{hours:,.0f}")
    for name, figure in FIGURES.items():
        out.add_row(name, figure.title, "figure", "")
    return out


def list_rows(name: str) -> Table:
    """Build the list of a table's rows with their printed values and costs, for terminals of 80 columns.

    Raises:
        UserError: if the table is unknown.
    """
    table = find_table(name)
    form = DATA[table.data]
    out = Table(
        title=f"{table.title}; data: stochseg data import {form.importer} SOURCE {form.store}",
        caption=f"GPU-hours: one seed, at {SUSTAINED_TFLOPS:g} TFLOP/s; steps × batch size",
        box=SIMPLE_HEAD,
        padding=0,
    )
    out.add_column("--row", no_wrap=True)
    out.add_column("printed as")
    for column in (*table.columns.values(), "steps", "GPU-hours"):
        out.add_column(column.replace("-", "-\n"), justify="right", no_wrap=True)
    for row in table.rows:
        price = cost(table.data, row.training)
        cells = [row.cells.get(column) for column in table.columns]
        values = ["" if cell is None else cell.printed.replace("±", "\n±") for cell in cells]
        steps = f"{price.steps:,}\n× {price.batch_size}"
        out.add_row(row.training, row.title, *values, steps, f"{price.gpu_hours:,.0f}")
    return out
