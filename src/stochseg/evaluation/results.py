"""Results of an evaluation: metrics, a table for the terminal, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from stochseg.files import write_csv, write_text
from stochseg.metrics.table import format_metric, metric_info, sort_metrics
from stochseg.types import Example, Samples


@dataclass(frozen=True)
class ModeTable:
    """True probability and sampled frequency of each mode, both "images m"."""

    names: tuple[str, ...]
    truth: npt.NDArray[np.float64]
    frequency: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Results of `evaluate`.

    Attributes:
        metrics: one number per key of the table of metrics (`stochseg.metrics.table`), over all images.
        images: one row per image: its id, its metrics, seconds and network evaluations.
        settings: model, data, number of images, sampling options, versions, device.
        kept: some examples with their samples, for pictures.
        modes: frequencies of the known modes, if the data have a known truth.
    """

    metrics: dict[str, float]
    images: list[dict[str, Any]]
    settings: dict[str, Any]
    kept: list[tuple[Example, Samples]] = field(default_factory=list)
    modes: ModeTable | None = None


def table(result: Evaluation, published: Mapping[str, float] | None = None) -> Table:
    """Build a table of the metrics for the terminal.

    Args:
        result: of `evaluate`.
        published: scores in print by key, shown in a column of their own.
    """
    s = result.settings
    out = Table(title=f"{s['model']} on {s['images']} images of {s['data']}, {s['n']} samples each")
    out.add_column("metric")
    out.add_column("value", justify="right")
    if published:
        out.add_column("published", justify="right")
    for key in sort_metrics(result.metrics):
        cells = [format_metric(key, result.metrics[key])]
        if published:
            cells.append(format_metric(key, published.get(key), digits=3))
        out.add_row(metric_info(key).title, *cells)
    return out


def write_results(result: Evaluation, folder: Path) -> list[Path]:
    """Write metrics.json, metrics.csv (one row) and images.csv (one row per image); returns the files."""
    files = [folder / "metrics.json", folder / "metrics.csv", folder / "images.csv"]
    write_text(files[0], json.dumps({**result.metrics, "settings": result.settings}, indent=2) + "\n")
    write_csv(files[1], [{**result.settings, **result.metrics}])
    write_csv(files[2], result.images)
    return files
