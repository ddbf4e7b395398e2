"""The comparison of methods: one row per method, as tables, a chart, and pictures of their samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from stochseg.data import SegmentationData, spread
from stochseg.evaluation.references import REFERENCE_NOTE, References, worse_than_blind
from stochseg.files import write_csv, write_text
from stochseg.metrics.table import FAMILIES, format_metric, metric_info
from stochseg.plotting import method_bars, write_figure
from stochseg.types import Example

Row = dict[str, Any]
METRICS = (
    "parameters",
    "train_steps",
    "train_minutes",
    "ged",
    "ged_unbiased",
    "hm_iou",
    "diversity",
    "miou",
    "ece",
    "brier",
    "evaluations",
    "seconds_per_sample",
)
COLUMNS = ("method", *METRICS, "note", "problem")
PRINTED = ("method", "ged", "hm_iou", "diversity", "ece", "seconds_per_sample", "note")
"""Columns that fit into 80 characters."""
_TERMS = {"evaluations": "maximum network evaluations", "limit": "images", "overrides": "settings"}


def with_references(rows: Sequence[Row], references: References, n: int) -> list[Row]:
    """Add a row per reference, and a note to each method that scores worse than label maps of other images."""
    found = []
    for row in rows:
        scored = {f"{key}_{n}": row[key] for key in FAMILIES}
        found.append({**row, "note": "worse than blind" if worse_than_blind(scored, references, n) else ""})
    for name, scores in references.items():
        own = {key: scores.get(f"{key}_{n}" if key in FAMILIES else key, math.nan) for key in METRICS}
        found.append({"method": name, **own, "note": "reference", "problem": ""})
    return found


def column_titles(n: int | None = None) -> dict[str, str]:
    """Titles of the columns by key. n: number of samples of the metrics that depend on it, shown in their titles."""
    titles = {key: metric_info(key if n is None or key not in FAMILIES else f"{key}_{n}").short for key in METRICS}
    return {key: titles.get(key, key) for key in COLUMNS}


def write_comparison(rows: Sequence[Row], out: Path, settings: Mapping[str, Any]) -> None:
    """Write comparison.csv, comparison.md and comparison.png, ordered by GED.

    Args:
        rows: of `with_references`, with the keys `COLUMNS`.
        out: the folder.
        settings: the terms that are the same for all methods, among them the number of samples.
    """
    n, ordered = settings["samples"], rank(rows)
    cells = [format_row(row) for row in ordered]
    write_csv(out / "comparison.csv", cells)
    given = {key: value for key, value in settings.items() if value not in (None, [])}
    terms = ", ".join(f"{_TERMS.get(key, key)} {_term(value)}" for key, value in given.items())
    text = f"{markdown_table(cells, column_titles(n))}\nThe same for all: {terms}. References, which no model drew: "
    write_text(out / "comparison.md", f"{text}{REFERENCE_NOTE}.\n")
    finished = [row for row in ordered if not row["problem"] and row["note"] != "reference"]
    if finished:
        write_figure(method_bars(finished, n=n), out / "comparison.png")


def comparison_table(rows: Sequence[Row], title: str) -> Table:
    """Build a table for the terminal, ordered by GED."""
    table, titles = Table(title=title), column_titles()
    for key in PRINTED:
        table.add_column(titles[key], justify="left" if key in ("method", "note") else "right", overflow="fold")
    for row in rank(rows):
        cells = format_row(row)
        table.add_row(*([row["method"], "failed"] if row["problem"] else [cells[key] for key in PRINTED]))
    return table


def rank(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by GED, the best first and failed methods last."""
    return sorted(rows, key=lambda row: math.inf if math.isnan(row["ged"]) else row["ged"])


def format_row(row: Row) -> dict[str, str]:
    """Format all columns of a row as text."""
    return {key: format_metric(key, row[key]) if key in METRICS else str(row[key]) for key in COLUMNS}


def markdown_table(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    """Format rows as a Markdown table without empty columns. columns: titles by key.

    >>> print(markdown_table([{"method": "ssn", "ged": "0.31", "miou": ""}], {"method": "method", "ged": "GED"}))
    | method | GED |
    | --- | --- |
    | ssn | 0.31 |
    <BLANKLINE>
    """
    shown = [key for key in columns if any(row.get(key) for row in rows)]  # older tables have fewer
    lines = [[columns[key] for key in shown], ["---"] * len(shown)]
    lines += [[row.get(key, "").replace("|", "/") for key in shown] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _term(value: Any) -> str:
    return " ".join(f"`{each}`" for each in value) if isinstance(value, list) else str(value)


def disputed_examples(data: SegmentationData, count: int) -> list[Example]:
    """Pick examples on which the raters disagree."""
    candidates = [data[i] for i in spread(len(data), 8 * count)]
    return sorted(candidates, key=_disagreement, reverse=True)[:count]


def _disagreement(example: Example) -> float:
    """Number of disputed pixels times their fraction of all marked pixels: findings that some raters do not mark at all
    come first, the large ones before the small."""
    marked = int((example.raters > 0).any(0).sum())
    disputed = int((example.raters != example.raters[:1]).any(0).sum())
    return disputed**2 / marked if marked else 0.0
