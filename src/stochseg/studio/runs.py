"""Finished runs and predictions: listed, sorted by their scores, and opened as jobs."""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from PIL import Image

from stochseg.data import of_rater, spread
from stochseg.errors import UserError
from stochseg.experiments.runs import default_results_dir, open_run
from stochseg.files import sha256
from stochseg.inference.sources import Source, read_stack
from stochseg.metrics.table import class_of, format_metric, metric_info, sort_metrics
from stochseg.models.io import is_model
from stochseg.models.raters import rater_number
from stochseg.reports.run import read_evaluations
from stochseg.reports.saved_result import find_results, read_result
from stochseg.studio.examples import write_volume
from stochseg.studio.findings import Findings
from stochseg.studio.maps import Array
from stochseg.studio.settings import Limits
from stochseg.studio.store import PAGE, RESULT, Json
from stochseg.studio.uploads import write_input
from stochseg.training.config import CONFIG_FILE
from stochseg.types import DatasetInfo, Example

MAX_RUNS = 200


def run_id(path: Path) -> str:
    """The name of a run or of predictions in the API."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:16]


def list_runs(folders: Sequence[Path]) -> list[Json]:
    """Runs with a checkpoint and folders of predictions, in these folders or directly below them."""
    found = []
    for folder in folders:
        below = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        for path in (folder, *below):
            facts = _describe(path)
            if facts is not None:
                found.append({"id": run_id(path), "name": path.name, "path": str(path), **facts})
    return found[:MAX_RUNS]


def _describe(path: Path) -> Json | None:
    try:
        if (path / CONFIG_FILE).is_file() and any(is_model(path / name) for name in ("best", "last")):
            return _describe_run(path)
        results = find_results(path)
        if results:
            first = read_result(results[0])
            model = first.model.origin or first.model.name
            return {"kind": "predictions", "model": model, "data": "", "metrics": [], "cases": len(results)}
    except (UserError, OSError):  # damaged, or not ours
        return None
    return None


def _describe_run(path: Path) -> Json:
    evaluations = read_evaluations(default_results_dir(path))
    newest = evaluations[0] if evaluations else {}
    settings = newest.get("settings", {})
    metrics = [
        {
            "key": key,
            "title": metric_info(key).title,
            "value": newest[key],
            "text": format_metric(key, newest[key]),
            "better": metric_info(key).better,
        }
        for key in sort_metrics(key for key, value in newest.items() if isinstance(value, (int, float)))
        if not class_of(key) and np.isfinite(newest[key])
    ]
    return {
        "kind": "run",
        "model": str(settings.get("model", "")),
        "data": str(settings.get("data", "")),
        "metrics": metrics,
        "cases": len(_rows(path)),
    }


# --- cases ----------------------------------------------------------------------------------------------


def list_cases(path: Path, sort: str) -> list[Json]:
    """Cases of a run or of predictions, the worst first if they have the score `sort`."""
    if not (path / CONFIG_FILE).is_file():
        return [{"id": str(i), "name": folder.name, "scores": {}} for i, folder in enumerate(find_results(path))]
    cases: list[Json] = []
    for i, row in enumerate(_rows(path)):
        scores = {key: number for key, value in row.items() if (number := _number(value)) is not None}
        cases.append({"id": str(i), "name": row.get("id", str(i)), "scores": scores})
    keys = [key for key in (cases[0]["scores"] if cases else {}) if key == sort or key.startswith(f"{sort}_")]
    if keys:
        worst = -1 if metric_info(keys[0]).better == "lower" else 1
        cases.sort(key=lambda case: worst * case["scores"].get(keys[0], 0.0))
    return cases


def _rows(path: Path) -> list[dict[str, str]]:
    """Rows per image of the newest evaluation of a run, of its first seed."""
    evaluations = read_evaluations(default_results_dir(path))
    file = path / evaluations[0]["folder"] / "images.csv" if evaluations else None
    if file is None or not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return rows[: int(evaluations[0].get("settings", {}).get("images", len(rows)))]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if np.isfinite(value) else None


def open_case(path: Path, case: int, input: Path, job: Path, limits: Limits) -> Json:
    """Make an input of a case and, of predictions, the finished job.

    Args:
        path: of the run or the predictions.
        case: number of the case.
        input: folder of the new input.
        job: folder of the new job.
        limits: of inputs.

    Returns:
        facts of the input; model and options of the job; done: whether the job is finished.
    """
    if (path / CONFIG_FILE).is_file():
        return _open_example(path, case, input, limits)
    return _open_prediction(find_results(path)[case], input, job, limits)


def _open_prediction(folder: Path, input: Path, job: Path, limits: Limits) -> Json:
    result = read_result(folder)
    files = [Path(each.file) for each in result.inputs]
    try:
        same = all(sha256(file) == each.sha256 for file, each in zip(files, result.inputs, strict=True))
    except OSError:
        same = False
    if not same:
        raise UserError(f"{result.source} is missing or has changed; predict it again with --overwrite")
    (input / "files").mkdir()
    copies = tuple(Path(shutil.copy(file, input / "files" / f"{i:05d}-{file.name}")) for i, file in enumerate(files))
    stack = read_stack(copies, result.image.slicing)
    source = Source(folder.name, copies)
    facts = write_input(input, folder.name, source, stack, None, None, [], limits)
    scan = folder.parent.parent if result.lesion is not None else folder
    shutil.copytree(scan, job / RESULT)
    if result.lesion is not None:  # of several lesions, this one
        for other in (job / RESULT / "lesions").iterdir():
            if other.name != folder.name:
                shutil.rmtree(other)
    (job / PAGE).mkdir()
    model = result.model.origin or result.model.name
    Findings.read(job / RESULT, facts, None).write(job / PAGE, seconds=0.0, model=model)
    options = {"n": result.num_samples, "rater": result.options.rater}
    return {"facts": facts, "model": model, "path": "", "options": options, "done": True}


def _open_example(path: Path, case: int, input: Path, limits: Limits) -> Json:
    settings = read_evaluations(default_results_dir(path))[0]["settings"]
    run = open_run(path, None, settings.get("split", "val"))
    data, rater = run.data, settings.get("rater")
    if rater is not None:
        known = data.info.rater_names
        rater = known[rater_number(rater, known, settings["model"])]
        data = of_rater(data, rater)
    example = data[spread(len(data), int(settings["images"]))[case]].rated(data.info.ignore)
    (input / "files").mkdir()
    raw = run.data.info.normalization.inverse(example.image.float()).movedim(0, -1).numpy()
    file = _write_image(input / "files", raw, example)
    stack = read_stack([file])
    raters = _raters(example, run.data.info)
    names = example.rater_names or tuple(f"rater {i + 1}" for i in range(len(example.raters)))
    spacing = None if example.spacing is None else example.spacing[-2:]
    found = (raters, names) if len(raters) else None
    facts = write_input(input, example.id, Source(example.id, (file,)), stack, spacing, found, [], limits)
    options: dict[str, Any] = {"n": min(int(settings["n"]), limits.samples), "seed": 0, "allow_unusual_input": True}
    options |= {"rater": rater, "guidance": settings.get("guidance")}
    return {"facts": facts, "model": path.name, "path": str(run.weights), "options": options, "done": False}


def _write_image(folder: Path, raw: Array, example: Example) -> Path:
    """Write intensities "*space c" losslessly."""
    whole = np.rint(raw)
    eight = np.abs(raw - whole).max() < 1e-2 and whole.min() >= 0 and whole.max() <= 255
    values = whole.astype(np.uint8) if eight else raw.astype(np.float32)
    values = values[..., 0] if values.shape[-1] == 1 else values
    if example.image.ndim == 4:
        return write_volume(folder, values, example.spacing or (1.0, 1.0, 1.0))
    if (eight and values.ndim == 2) or values.shape[-1] == 3:
        Image.fromarray(values).save(folder / "00000.png")
        return folder / "00000.png"
    tifffile.imwrite(folder / "00000.tif", values)
    return folder / "00000.tif"


def _raters(example: Example, info: DatasetInfo) -> Array:
    maps = example.raters if info.ignore is None else torch.where(example.raters == info.ignore, 0, example.raters)
    stack = maps if maps.ndim == 4 else maps[:, None]
    found: Array = stack.numpy().astype(np.uint8)
    return found
