"""Results of an evaluation: metrics, tables for the terminal, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from stochseg.data import SegmentationData
from stochseg.evaluation.references import REFERENCE_NOTE, References, score_references, worse_than_blind
from stochseg.files import write_csv, write_text
from stochseg.metrics.selective import RiskCoverage, risk_coverage
from stochseg.metrics.table import class_of, count_of, format_metric, metric_info, sort_metrics
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
        metrics: one number per key of the table of metrics (`stochseg.metrics.table`), over all images; means, if there
            are several seeds.
        images: one row per image: its id, its metrics, seconds and network evaluations; one per seed, if several.
        settings: model, data, number of images, sampling options, versions, device.
        kept: some examples with their samples, for pictures.
        modes: frequencies of the known modes, if the data have a known truth.
        seeds: the metrics of each sampling seed, if there are several.
        references: the metrics of label maps that no model drew (`score_references`), if they were scored.
    """

    metrics: dict[str, float]
    images: list[dict[str, Any]]
    settings: dict[str, Any]
    kept: list[tuple[Example, Samples]] = field(default_factory=list)
    modes: ModeTable | None = None
    seeds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    references: References = field(default_factory=dict)

    @property
    def deviation(self) -> dict[str, float]:
        """Standard deviation of each metric over the seeds; empty for a single seed."""
        if not self.seeds:
            return {}
        return {key: float(np.std([found[key] for found in self.seeds.values()], ddof=1)) for key in self.metrics}

    @property
    def risk_coverage(self) -> RiskCoverage | None:
        """Risk of the most confident images, of the first seed; None without confidences, as for single samples."""
        own = [row for row in self.images if row.get("seed") == self.images[0].get("seed") and "risk" in row]
        return risk_coverage([row["risk"] for row in own], [row["confidence"] for row in own]) if own else None

    def text(self, key: str) -> str:
        """A metric as text, with its deviation if there are several seeds; "" if it is missing."""
        value, deviation = format_metric(key, self.metrics.get(key)), self.deviation.get(key)
        return value if deviation is None else f"{value} ± {format_metric(key, deviation)}"

    def class_rows(self) -> tuple[list[str], list[list[str]]]:
        """Scores per class as text: the names of the columns, and one row per class. No rows for two classes."""
        keys = [key for key in sort_metrics(self.metrics) if class_of(key)]
        columns = list(dict.fromkeys(key.partition("/")[0] for key in keys))
        # In the order of the classes: every class has an IoU or does not occur.
        names = list(dict.fromkeys(class_of(key) for key in sorted(keys, key=lambda key: not key.startswith("iou/"))))
        rows = [[name, *(self.text(f"{column}/{name}") for column in columns)] for name in names]
        return ["class", *(metric_info(column).short for column in columns)], rows

    def with_references(self, data: SegmentationData, limit: int | None) -> Evaluation:
        """Add the scores of the references on the same images; data and limit: as given to `evaluate`."""
        counts = [count_of(key) for key in self.metrics if key.startswith("ged_") and count_of(key)]
        return replace(self, references=score_references(data, counts, limit))

    def reference_rows(self) -> tuple[list[str], list[list[str]]]:
        """The main scores of the model and of the references as text: the names of the columns, and the rows."""
        n = self.settings["n"]
        shown = (f"ged_{n}", f"hm_iou_{n}", f"diversity_{n}", "miou", "ece", "brier")
        keys = [key for key in shown if key in self.metrics]  # one sample has no diversity
        worse = worse_than_blind(self.metrics, self.references, n)
        rows = [[self.settings["model"] + " (worse than blind)" * worse, *map(self.text, keys)]]
        for name, scores in self.references.items():
            rows.append([name, *(format_metric(key, scores.get(key)) for key in keys)])
        return ["", *(metric_info(key).short for key in keys)], rows if self.references else []


def table(result: Evaluation) -> Table:
    """Build a table of the metrics for the terminal."""
    s = result.settings
    split = f", split {s['split']}" if "split" in s else ""
    seeds = f", {len(result.seeds)} seeds" if result.seeds else ""
    drawn = f"{s['n']} sample{'s' * (s['n'] > 1)}"
    out = Table(title=f"{s['model']} on {s['images']} images of {s['data']}{split}, {drawn} each{seeds}")
    out.add_column("metric")
    out.add_column("value", justify="right")
    for key in sort_metrics(result.metrics):
        if not class_of(key):
            out.add_row(metric_info(key).title, result.text(key))
    return out


def class_table(result: Evaluation) -> Table | None:
    """Build a table of the scores per class for the terminal; None for two classes."""
    columns, rows = result.class_rows()
    if not rows:
        return None
    out = Table(title="fused map and GED per class")
    for column in columns:
        out.add_column(column, justify="left" if column == "class" else "right", overflow="fold")
    for row in rows:
        out.add_row(*row)
    return out


def reference_table(result: Evaluation) -> Table | None:
    """Build a table of the references for the terminal; None if they were not scored."""
    columns, rows = result.reference_rows()
    if not rows:
        return None
    out = Table(title="references: label maps that no model drew", caption=REFERENCE_NOTE)
    for column in columns:
        out.add_column(column, justify="right" if column else "left", overflow="fold")
    for row in rows:
        out.add_row(*row)
    return out


def write_results(result: Evaluation, folder: Path) -> list[Path]:
    """Write metrics.json, metrics.csv, images.csv (one row per image), risk.csv (the risk-coverage curve) and, with
    references, references.csv; returns the files.

    metrics.csv has one row; with several seeds one per seed, and the mean and the standard deviation at the end.
    """
    files = [folder / "metrics.json", folder / "metrics.csv", folder / "images.csv"]
    content: dict[str, Any] = {**result.metrics, "settings": result.settings}
    rows = [{**result.settings, **result.metrics}]
    if result.seeds:
        seeds = {str(seed): metrics for seed, metrics in result.seeds.items()}
        content |= {"deviation": result.deviation, "seeds": seeds}
        parts = {**seeds, "mean": result.metrics, "deviation": result.deviation}
        rows = [{**result.settings, "seed": name, **metrics} for name, metrics in parts.items()]
    if result.references:
        content["references"] = result.references
    write_text(files[0], json.dumps(content, indent=2) + "\n")
    write_csv(files[1], rows)
    write_csv(files[2], result.images)
    if (curve := result.risk_coverage) is not None:
        files.append(folder / "risk.csv")
        points = zip(curve.coverage.tolist(), curve.risk.tolist(), curve.best.tolist(), strict=True)
        write_csv(files[-1], [{"coverage": c, "risk": risk, "best": best} for c, risk, best in points])
    if result.references:
        files.append(folder / "references.csv")
        write_csv(files[-1], [{"reference": name, **scores} for name, scores in result.references.items()])
    return files
