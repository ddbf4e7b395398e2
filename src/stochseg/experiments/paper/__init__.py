"""The tables and figures of the CCDM paper: published values, trainings, costs, and our scores next to them."""

from stochseg.experiments.paper.published import TABLES, Cell, PaperTable, TableRow, find_table
from stochseg.experiments.paper.runner import RunSettings, run_rows
from stochseg.experiments.paper.tables import FORMATS, format_table

__all__ = [
    "FORMATS",
    "TABLES",
    "Cell",
    "PaperTable",
    "RunSettings",
    "TableRow",
    "find_table",
    "format_table",
    "run_rows",
]
