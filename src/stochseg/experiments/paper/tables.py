"""Tables of the paper with our scores next to the printed ones, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stochseg.experiments.paper.published import Cell, PaperTable
from stochseg.experiments.paper.runner import SCORES, settings_of

PERCENT = "miou"
"""Scores with this in their key are printed in percent."""


@dataclass(frozen=True)
class Measured:
    """Our scores of a cell: one per seed, and the budgets of their experiments, where they are not the paper's."""

    values: tuple[float, ...]
    budgets: frozenset[str]


def measure(table: PaperTable, training: str, cell: Cell, out: Path) -> Measured:
    """Collect our scores of a cell from the files of `run_rows`."""
    files = sorted((out / table.data / training).glob(f"seed-*/{SCORES}"))
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    found = [record for record in records if cell.score in record["scores"]]
    factor = 100 if PERCENT in cell.score else 1
    budgets = (settings_of(record, out).budget for record in found)
    return Measured(tuple(factor * record["scores"][cell.score] for record in found), frozenset(filter(None, budgets)))


def format_table(table: PaperTable, out: Path, style: str) -> str:
    """Format a table with our scores below the printed ones.

    Args:
        table: The table.
        out: Folder of `RunSettings.out`.
        style: A key of `FORMATS`.

    Returns:
        The text. Scores of smaller experiments are marked: they do not compare with the printed ones.
    """
    header = ["row", "parameters", "", *table.columns.values()]
    lines: list[list[str]] = []
    budgets: set[str] = set()
    for row in table.rows:
        ours = {column: measure(table, row.training, cell, out) for column, cell in row.cells.items()}
        budgets |= {budget for measured in ours.values() for budget in measured.budgets}
        printed = {column: cell.printed for column, cell in row.cells.items()}
        own = {column: format_values(measured.values, table.digits) for column, measured in ours.items()}
        for source, cells in (("printed", printed), ("ours", own)):
            if source == "printed" or any(own.values()):
                lines.append([row.title, row.parameters, source, *(cells.get(column, "") for column in table.columns)])
    note = f"NOT COMPARABLE: our scores are of experiments {', '.join(sorted(budgets))}." if budgets else ""
    return FORMATS[style](table.title, header, lines, note)


def format_values(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation over seeds; "" without values.

    >>> format_values([0.21, 0.23], 3)
    '0.220±0.014'
    """
    if not values:
        return ""
    text = f"{np.mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text}±{np.std(values, ddof=1):.{digits}f}"


def _markdown(title: str, header: list[str], lines: list[list[str]], note: str) -> str:
    rows = [header, ["---"] * len(header), *lines]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"**{title}**\n\n{text}" + (f"\n**{note}**\n" if note else "")


def _csv(title: str, header: list[str], lines: list[list[str]], note: str) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["table", *(name or "source" for name in header), "note"])
    writer.writerows([title, *line, note] for line in lines)
    return stream.getvalue()


def _latex(title: str, header: list[str], lines: list[list[str]], note: str) -> str:
    def row(cells: list[str]) -> str:
        return " & ".join(cell.replace("±", r"$\pm$").replace("×", r"$\times$") for cell in cells) + r" \\"

    body = "\n".join(map(row, lines))
    return (
        f"\\begin{{table}}\n\\caption{{{title}. {note}}}\n\\begin{{tabular}}{{lll{'c' * (len(header) - 3)}}}\n"
        f"\\toprule\n{row(header)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


FORMATS: dict[str, Callable[[str, list[str], list[list[str]], str], str]] = {
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}
"""Styles of `format_table`."""
