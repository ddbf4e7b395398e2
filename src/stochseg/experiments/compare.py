"""Compare methods under equal terms: the same data, split, budget, metrics and code for all."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from stochseg._version import __version__
from stochseg.data import spread
from stochseg.devices import pick_device
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.files import write_csv, write_text
from stochseg.models import StochasticSegmenter, load
from stochseg.models.registry import find_class
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import comparison_grid, method_bars, write_figure
from stochseg.training import TrainConfig, open_split, train
from stochseg.training.config import ValidationConfig
from stochseg.types import Example, Samples

ROW = "row.json"
_TERMS = {"evaluations": "network evaluations at most", "limit": "images", "overrides": "settings"}
COLUMNS = {
    "method": "method",
    "parameters": "parameters",
    "train_steps": "steps trained",
    "train_minutes": "minutes trained",
    "ged": "GED",
    "ged_unbiased": "GED, unbiased",
    "hm_iou": "HM-IoU",
    "diversity": "diversity",
    "miou": "mIoU",
    "ece": "ECE",
    "brier": "Brier",
    "evaluations": "network evaluations a sample",
    "seconds_per_sample": "seconds a sample",
    "problem": "problem",
}


def parse_budget(text: str) -> dict[str, Any]:
    """A budget such as 20m, 90s, 1.5h (training time) or 2000 (optimizer steps), as keys of a training config."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps)?", text.strip())
    if found is None or float(found[1]) <= 0:
        raise UserError(f"budget {text!r}: expected a time such as 20m, 90s or 1.5h, or a number of steps such as 2000")
    number, unit = float(found[1]), found[2] or "steps"
    if unit == "steps":
        if number != int(number):
            raise UserError(f"budget {text!r}: steps are whole numbers")
        return {"steps": int(number), "minutes": None}
    return {"steps": 10**9, "minutes": number * {"s": 1 / 60, "m": 1, "h": 60}[unit]}


def compare(
    methods: Sequence[str],
    data: Path | None,
    budget: str,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    split: str = "val",
    samples: int = 16,
    limit: int | None = None,
    evaluations: int | None = None,
    device: str = "auto",
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Train and evaluate every method within the same budget; one row each. A method is a recipe or a model's name,
    with settings of its own behind it if it has any: "ccdm-fast", "ccdm-fast lr=1e-3 model.options.components=8".

    A row that is finished is kept: calling again trains only what is missing. A method that fails has a row that says
    why. No method sees its validation score while training: the last weights count for all.
    evaluations: the most network evaluations per sample, for methods that make more by default.
    """
    console = console or Console(stderr=True)
    if len(set(methods)) < len(methods):
        raise UserError(f"methods must be named once each, got {', '.join(methods)}")
    if samples < 2:
        raise UserError(f"compare needs at least 2 samples an image, got {samples}")
    if limit is not None and limit < 1:
        raise UserError(f"compare: limit must be at least 1, got {limit}")
    limits = parse_budget(budget)
    configs = {name: _config(name, overrides, data, limits) for name in methods}
    chosen = pick_device(device)
    _check_data(configs, split)
    settings = {
        "budget": budget,
        "data": None if data is None else str(data),
        "split": split,
        "samples": samples,
        "limit": limit,
        "evaluations": evaluations,
        "overrides": list(overrides),
        "stochseg": __version__,
        "device": str(chosen),
        "threads": torch.get_num_threads(),
    }
    done = {name: _finished(out / _folder(name) / ROW, {"method": name, **settings}) for name in configs}
    rows = []
    for name, config in configs.items():
        folder, row = out / _folder(name), done[name]
        if row is None:
            console.print(f"{name}: training for {budget}", highlight=False)
            row = _run(name, config, folder, split, samples, limit, evaluations, chosen)
            write_text(folder / ROW, json.dumps({"settings": settings, **row}, indent=2) + "\n")
        shown = row["problem"] or f"GED {row['ged']:.4f}, HM-IoU {row['hm_iou']:.4f}"
        console.print(f"{name}: {shown}", highlight=False, markup=False)
        rows.append(row)
    write_comparison(rows, out, settings)
    _write_grid(rows, out, configs, split, evaluations, chosen)
    return rows


def _config(method: str, overrides: Sequence[str], data: Path | None, limits: dict[str, Any]) -> TrainConfig:
    name, *own = method.split() or [method]
    if not all("=" in word for word in own):  # a config file with blanks in its path
        name, own = method, []
    config = recipe(name, [*overrides, *own], data)
    # The last weights count, whatever their validation: it is made as small as it gets.
    iterative = "evaluations" in find_class(config.model.name).sampling_choices
    validation = ValidationConfig(
        every=10**9, images=1, num_samples=2, evaluations=1 if iterative else None, calibration_images=0
    )
    return config.model_copy(update={**limits, "validation": validation})


def _check_data(configs: dict[str, TrainConfig], split: str) -> None:
    """UserError, before any training, if data cannot be opened or are not the same for all."""
    first = next(iter(configs))
    for name, config in configs.items():
        for part in ("train", "val", split):
            if len(open_split(config, part)) == 0:
                raise UserError(f"{name}: the split {part!r} of its data is empty")
        scored, expected = _scored_on(config, split), _scored_on(configs[first], split)
        if scored != expected:
            raise UserError(
                f"{name} would be scored on other data than {first} ({scored} instead of {expected}), so the two "
                "cannot be compared; give the same --data and data.size for all"
            )


def _scored_on(config: TrainConfig, split: str) -> dict[str, Any]:
    own = "train" if split == "train" else "val"
    return config.data.model_dump(mode="json", include={"name", "options", own, "size"})


def _folder(method: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", method)


def _finished(file: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The row of an earlier call, if there is one. A failed one is tried again."""
    if not file.exists():
        return None
    row = json.loads(file.read_text())
    earlier = {"method": row["method"], **row.pop("settings")}
    changed = sorted(key for key in settings if earlier.get(key) != settings[key])
    if changed:
        before, now = (", ".join(str(values.get(key)) for key in changed) for values in (earlier, settings))
        raise UserError(
            f"{file.parent} was made with another {', '.join(changed)} ({before} instead of {now}); give another "
            "--out, or delete that folder"
        )
    return None if row["problem"] else row


def _run(
    name: str,
    config: TrainConfig,
    folder: Path,
    split: str,
    samples: int,
    limit: int | None,
    evaluations: int | None,
    device: torch.device,
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, math.nan) | {"method": name, "problem": ""}
    try:
        train(config, folder / "run", resume=True, device=str(device), console=Console(quiet=True))
        model = _trained(folder, config, device)
        progress = json.loads((folder / "run" / "last" / "state" / "progress.json").read_text())
        result = evaluate(
            model,
            open_split(config, split),
            options=SamplingOptions(n=samples, evaluations=_at_most(evaluations, model)),
            limit=limit,
            keep=0,
        )
        metrics = result.metrics
        row |= {
            "parameters": sum(p.numel() for p in model.parameters()),
            "train_steps": progress["step"],
            "train_minutes": round(progress["seconds"] / 60, 2),
            "ged": metrics[f"ged_{samples}"],
            "ged_unbiased": metrics.get("ged_unbiased", math.nan),
            "hm_iou": metrics[f"hm_iou_{samples}"],
            "diversity": metrics[f"diversity_{samples}"],
            "miou": metrics["miou"],
            "ece": metrics["ece"],
            "brier": metrics["brier"],
            "evaluations": round(metrics["evaluations_per_sample"]),
            "seconds_per_sample": metrics["seconds_per_image"] / samples,
        }
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "problem.txt").write_text(traceback.format_exc())
        row["problem"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return row


def _trained(folder: Path, config: TrainConfig, device: torch.device) -> StochasticSegmenter:
    """The last weights, which count, with the grid they need, measured on validation images whatever is scored."""
    model = load(folder / "run" / "last", device=device)
    if model.default_sampling().grid == "entropy":
        images = open_split(config, "val")
        model.calibrate_sampling([images[i].image[None] for i in spread(len(images), 16)])
    return model


def _at_most(evaluations: int | None, model: StochasticSegmenter) -> int | None:
    """`evaluations` for a model that makes more by default, else None: its own default."""
    own = model.default_sampling().evaluations
    return evaluations if evaluations is not None and own is not None and own > evaluations else None


# ---------------------------------------------------------------------- what is written


def write_comparison(rows: Sequence[dict[str, Any]], out: Path, settings: dict[str, Any]) -> None:
    """comparison.csv, comparison.md with the terms under the table, and comparison.png; the best GED first."""
    samples = settings["samples"]
    ordered = ranked(rows)
    write_csv(out / "comparison.csv", [as_text(row) for row in ordered])
    names = {**COLUMNS, "ged": f"GED_{samples}", "hm_iou": f"HM-IoU_{samples}", "diversity": f"diversity_{samples}"}
    terms = ", ".join(
        f"{_TERMS.get(key, key)} {_term(value)}" for key, value in settings.items() if value not in (None, [])
    )
    text = markdown_table([as_text(row) for row in ordered], names)
    write_text(out / "comparison.md", f"{text}\nThe same for all: {terms}.\n")
    done = [row for row in ordered if not row["problem"]]
    if done:
        write_figure(method_bars(done, n=samples), out / "comparison.png")


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best GED first, what failed last."""
    return sorted(rows, key=lambda row: math.inf if math.isnan(row["ged"]) else row["ged"])


def markdown_table(rows: Sequence[dict[str, str]], columns: dict[str, str]) -> str:
    """With the columns that have something to say; columns: their titles by key."""
    shown = [key for key in columns if any(row[key] for row in rows)]
    lines = [[columns[key] for key in shown], ["---"] * len(shown)]
    lines += [[row[key].replace("|", "/") for key in shown] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _term(value: Any) -> str:
    return " ".join(f"`{each}`" for each in value) if isinstance(value, list) else str(value)


def as_text(row: dict[str, Any]) -> dict[str, str]:
    return {key: _cell(key, row[key]) for key in COLUMNS}


def _cell(key: str, value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}" if key.startswith(("seconds", "train_")) else f"{value:.4f}"
    return str(value)


def _write_grid(
    rows: Sequence[dict[str, Any]],
    out: Path,
    configs: dict[str, TrainConfig],
    split: str,
    evaluations: int | None,
    device: torch.device,
    images: int = 3,
) -> None:
    """samples-1.png ...: for a few images the samples of every method, a row each."""
    folders = {row["method"]: out / _folder(row["method"]) for row in rows if not row["problem"]}
    if not folders:
        return
    data = open_split(next(iter(configs.values())), split)
    # Images whose raters disagree show most.
    candidates = [data[i] for i in spread(len(data), 8 * images)]
    chosen = sorted(candidates, key=_disagreement, reverse=True)[:images]
    drawn: list[dict[str, Samples]] = [{} for _ in chosen]
    for name, folder in folders.items():
        model = _trained(folder, configs[name], device)
        for example, samples in zip(chosen, drawn, strict=True):
            samples[name] = model.sample(example.image[None], 8, evaluations=_at_most(evaluations, model)).to("cpu")
    for number, (example, samples) in enumerate(zip(chosen, drawn, strict=True), start=1):
        write_figure(comparison_grid(example, samples, data.info), out / f"samples-{number}.png")


def _disagreement(example: Example) -> float:
    """Pixels on which the raters do not all agree, times their share of the pixels that any rater marked: findings that
    some do not see at all come first, the large ones before the small."""
    labels = example.raters
    marked = int((labels > 0).any(0).sum())
    disputed = int((labels != labels[:1]).any(0).sum())
    return disputed**2 / marked if marked else 0.0
