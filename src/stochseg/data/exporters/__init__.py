"""Data sets in the layouts of other libraries, one file each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stochseg.data.exporters.nnunet import export_nnunet
from stochseg.data.exporters.records import Progress, Records, open_records

__all__ = ["EXPORTERS", "Records", "export_nnunet", "open_records"]

EXPORTERS: dict[str, Callable[[Records, Path, Progress, str], Path]] = {"nnunet": export_nnunet}
"""Functions from records, a folder, a report of progress and a consensus rule to the folder they write, by kind."""
