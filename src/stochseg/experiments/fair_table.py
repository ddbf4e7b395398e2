"""The table and the curves of a fair comparison, from the files that its methods have left so far."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data import SegmentationData, spread
from stochseg.evaluation.references import BLIND, REFERENCE_NOTE, score_references_by_image
from stochseg.experiments.compare import folder_of
from stochseg.experiments.comparison import markdown_table
from stochseg.experiments.method_sets import method_title
from stochseg.files import write_csv, write_text
from stochseg.metrics.table import format_metric
from stochseg.plotting import learning_curves, method_intervals, write_figure

N = 16
SCORED = ("ged_16", "ged_unbiased", "hm_iou_16", "ece")
DIFFERENCES = ("difference", "blind_difference")
RESAMPLES = 2000
REFERENCES, PROBLEM = "references.json", "problem.txt"
Interval = tuple[float, float]

COLUMNS = {
    "method": "method",
    "minutes": "core minutes",
    "sampling": "sampling",
    "seed": "training seed",
    "ged_16": "GED_16",
    "interval": "95% interval",
    "difference": "difference to the first",
    "difference_interval": "95% interval of the difference",
    "blind_difference": "difference to blind",
    "blind_interval": "95% interval of the difference to blind",
    "ged_unbiased": "GED, unbiased",
    "hm_iou_16": "HM-IoU_16",
    "ece": "ECE",
    "evaluations": "evaluations",
    "image_count": "images",
    "lr": "lr",
    "pilots": "pilots",
    "steps": "steps",
    "images_seen": "images seen",
    "pairs_seen": "pairs seen",
    "note": "note",
}


def write_fair(
    names: Sequence[str], data: SegmentationData, out: Path, *, image_counts: tuple[int, int], pilots: int
) -> list[dict[str, Any]]:
    """Write the table and the curves of the results that exist.

    Args:
        names: of the methods; the first is the one that the others are compared with.
        data: the split that was scored.
        out: folder of the comparison.
        image_counts: numbers of images that were scored, and where a method makes its own number of evaluations.
        pilots: number of pilots that a method should have.

    Returns:
        The rows.
    """
    chosen = {i for count in image_counts for i in spread(len(data), count)}
    patients = {(each := data[i]).id: each.group or each.id for i in sorted(chosen)}
    references = _references(data, image_counts[0], out / REFERENCES)
    blind = references[BLIND]["images"] if BLIND in references else {}
    rows, first = list[dict[str, Any]](), dict[tuple[float, str, int], Mapping[str, float]]()
    for name in names:
        folder = out / folder_of(name)
        found = [read_results(file) for file in sorted(folder.glob("scores-*.json"))]
        problem = f"failed: {_first_line(folder / PROBLEM)}" if (folder / PROBLEM).exists() else ""
        tried = f"{len([*folder.glob('pilot-*.json')])} of {pilots}"
        for scores in sorted(found, key=lambda each: (each["seed"], each["minutes"])):
            own, key = scores.pop("images"), (scores["minutes"], scores["sampling"], scores["seed"])
            if name == names[0]:
                first[key] = own
            row = {"method": name, **scores, "interval": _bootstrap(own, patients), "image_count": len(own)}
            row["difference"], row["difference_interval"] = difference(own, first.get(key, {}), patients)
            row["blind_difference"], row["blind_interval"] = difference(own, blind, patients)
            note = "; ".join(filter(None, (_note(row["blind_interval"]), problem)))
            rows.append({**row, "pilots": tried, "note": note})
        if not found:
            rows.append({"method": name, "note": problem or "no result yet"})
    for name, known in references.items():
        rows.append({"method": name, **{key: known[key] for key in SCORED if key in known}, "note": "reference"})
    cells = table_cells(rows)
    write_csv(out / "fair.csv", cells)
    write_text(out / "fair.md", f"{markdown_table(cells, COLUMNS)}\nReferences: {REFERENCE_NOTE}.\n")
    lines = {name: known["ged_16"] for name, known in references.items()}
    curves = {method_title(name): _curve([row for row in rows if row["method"] == name]) for name in names}
    write_figure(learning_curves(curves, lines.get(BLIND)), out / "fair.png")
    write_figure(method_intervals(_at_last_budget(rows), lines), out / "fair-intervals.png")
    return rows


def _at_last_budget(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, Interval]]:
    """GED with its interval within 10 evaluations, of the first training of each method that has reached the last
    budget of all."""
    scored = [row for row in rows if row.get("sampling") == "10"]
    last = max((row["minutes"] for row in scored), default=0)
    first = [row for row in reversed(scored) if row["minutes"] == last]
    return {method_title(row["method"]): (row["ged_16"], row["interval"]) for row in first}


def table_cells(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rows as text, with all columns."""
    return [{key: _cell(key, row.get(key)) for key in COLUMNS} for row in rows]


def _note(interval: Interval | None) -> str:
    """Describe the result against blind."""
    if interval is None or interval[1] < 0:
        return ""
    return "worse than blind" if interval[0] > 0 else "not clearly better than blind"


def _curve(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """GED by minutes within 10 evaluations, the mean over trainings."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        if row.get("sampling") == "10":
            scores.setdefault(row["minutes"], []).append(row["ged_16"])
    return [(minutes, float(np.mean(scores[minutes]))) for minutes in sorted(scores)]


def read_results(file: Path) -> dict[str, Any]:
    """Read a file that a stage has left."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _first_line(file: Path) -> str:
    return file.read_text(encoding="utf-8").partition("\n")[0]


def _references(data: SegmentationData, images: int, file: Path) -> dict[str, dict[str, Any]]:
    """Scores of the references by name: over all images, and the GED of each by its id under "images"."""
    if not file.exists():
        found = {
            name: {**means, "images": {image: each["ged_16"] for image, each in rows.items()}}
            for name, (means, rows) in score_references_by_image(data, [N], images).items()
        }
        write_text(file, json.dumps(found) + "\n")
    return read_results(file)


def difference(
    own: Mapping[str, float], other: Mapping[str, float], patients: Mapping[str, str]
) -> tuple[float, Interval] | tuple[None, None]:
    """The mean difference to another method, and its 95% interval by bootstrap over patients.

    Args:
        own: score per image.
        other: score per image of the other method; images that both have are compared.
        patients: of each image.

    Returns:
        Both; None if there are no images to compare.
    """
    found = {name: own[name] - other[name] for name in own if name in other}
    return (float(np.mean([*found.values()])), _bootstrap(found, patients)) if found else (None, None)


def _bootstrap(values: Mapping[str, float], patients: Mapping[str, str]) -> Interval:
    """The 2.5% and 97.5% points of the mean over images, with patients drawn again with replacement."""
    by_patient: dict[str, list[float]] = {}
    for name, value in values.items():
        by_patient.setdefault(patients[name], []).append(value)
    sums, counts = (np.array([function(each) for each in by_patient.values()]) for function in (np.sum, len))
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " to ".join(f"{end:.3f}" for end in value)
    if key in (*SCORED, *DIFFERENCES):
        return format_metric("ged" if key in DIFFERENCES else key, value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
