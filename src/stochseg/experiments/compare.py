"""Compare methods under equal terms: the same data, split, budget, metrics and code for all."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from stochseg._version import __version__
from stochseg.data import spread
from stochseg.devices import pick_device
from stochseg.errors import UserError
from stochseg.evaluation import evaluate, score_references
from stochseg.evaluation.evaluator import check_counts
from stochseg.evaluation.references import References
from stochseg.experiments.comparison import METRICS, Row, disputed_examples, with_references, write_comparison
from stochseg.experiments.recipes import recipe
from stochseg.files import write_text
from stochseg.locks import locked
from stochseg.metrics.table import FAMILIES, format_metric
from stochseg.models import StochasticSegmenter, load
from stochseg.models.registry import find_class
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import comparison_grid, write_figure
from stochseg.training import TrainConfig, open_split, train
from stochseg.training.config import ValidationConfig
from stochseg.types import Samples
from stochseg.workers import MAX_DEATHS, Pool, Runner, run_here

ROW = "row.json"
REFERENCES = "references.json"
GRID_IMAGES, GRID_SAMPLES = 3, 8


@dataclass(frozen=True)
class Terms:
    """Conditions that are the same for all methods. options: as in `compare`."""

    budget: str
    data: Path | None
    split: str
    options: SamplingOptions
    limit: int | None
    overrides: tuple[str, ...]
    device: str
    threads: int

    def record(self) -> dict[str, Any]:
        """The terms as JSON; rows of other terms are not comparable."""
        return {
            "budget": self.budget,
            "data": None if self.data is None else str(self.data),
            "split": self.split,
            "samples": self.options.n,
            "limit": self.limit,
            "evaluations": self.options.evaluations,
            **self.options.model_dump(include={"noise", "seed"}, exclude_defaults=True),
            "overrides": list(self.overrides),
            "stochseg": __version__,
            "device": self.device,
            "threads": self.threads,
        }

    def options_for(self, model: StochasticSegmenter) -> SamplingOptions:
        """Sampling options of a model: its default number of evaluations, unless the terms allow fewer."""
        most, own = self.options.evaluations, model.default_sampling().evaluations
        fewer = most if most is not None and own is not None and own > most else None
        return self.options.model_copy(update={"evaluations": fewer})


def parse_budget(text: str) -> dict[str, Any]:
    """Parse a budget, a time or a number of optimizer steps, into keys of a training config.

    Raises:
        UserError: if it is neither.

    >>> parse_budget("1.5h")["minutes"], parse_budget("2000")["steps"]
    (90.0, 2000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps)?", text.strip())
    if found is None or not 0 < float(found[1]) <= 10**9:
        raise UserError(f"budget {text!r}: expected a time such as 20m, 90s or 1.5h, or a number of steps such as 2000")
    number, unit = float(found[1]), found[2] or "steps"
    if unit == "steps":
        if number != int(number):
            raise UserError(f"budget {text!r}: expected a whole number of steps")
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
    options: SamplingOptions = SamplingOptions(),
    limit: int | None = None,
    device: str = "auto",
    console: Console | None = None,
    pool: Pool | None = None,
) -> list[Row]:
    """Train and evaluate several methods within the same budget, and write tables and pictures.

    Finished rows in `out` are kept; failed ones are tried again. The last weights of every training are scored, so that
    no method chooses its weights by its validation score.

    Args:
        methods: recipes, config files or registered models, with settings of their own: "ccdm-fast",
            "ccdm-fast lr=1e-3 model.options.components=8".
        data: a packed store or a folder; default: the data of the recipes.
        budget: of each training, such as "20m" or "2000" (steps).
        out: the folder to write.
        overrides: settings for all methods, such as "batch_size=16".
        split: the split to score.
        options: of sampling. `evaluations` is a maximum, for methods that make more by default; samplers and grids are
            settings of a method.
        limit: maximum number of images to score, evenly spaced.
        device: to train and sample on.
        console: for messages; default: stderr.
        pool: workers that train and score the methods, one each; the budget holds for every one.

    Returns:
        One row per method with the keys `comparison.COLUMNS`; `problem` says why a method failed, `note` whether it
        scores worse than label maps of other images. Then one row per reference, with the note "reference".

    Raises:
        UserError: before any training, if the methods cannot be compared, rows of other terms are in `out`, or another
            process is writing there.
    """
    console = console or Console(stderr=True)
    if len(set(methods)) < len(methods):
        raise UserError(f"compare: expected every method once, got {', '.join(methods)}")
    if options.sampler is not None or options.grid is not None:
        raise UserError("compare: sampler and grid are settings of a method: 'ccdm model.options.sampler=ddim'")
    check_counts(options, limit)
    limits = parse_budget(budget)
    configs = {name: method_config(name, overrides, data, limits) for name in methods}
    _check_data(configs, split)
    runner: Runner[str] = partial(run_here, str) if pool is None else partial(pool.run, str)  # nothing is shared
    with locked(out):
        place = next(runner(_place, [[device]], _lost_place))
        terms = Terms(budget, data, split, options, limit, tuple(overrides), *place)
        rows = with_references(_rows(configs, out, terms, runner, console), _references(configs, out, terms), options.n)
        write_comparison(rows, out, terms.record())
        finished = [row["method"] for row in rows if row["method"] in configs and not row["problem"]]
        _write_grids(finished, configs, out, terms)
    return rows


def _rows(configs: dict[str, TrainConfig], out: Path, terms: Terms, runner: Runner[str], console: Console) -> list[Row]:
    """Read the rows of finished methods and make the others."""
    rows = {name: _finished_row(out / folder_of(name) / ROW, name, terms.record()) for name in configs}

    def pending() -> Iterator[list[Method]]:
        for name, config in configs.items():
            if rows[name] is None:
                console.print(f"{name}: training for {terms.budget}", highlight=False, markup=False)
                yield [(name, config, out / folder_of(name))]

    def show(row: Row) -> None:
        scores = (f"{title} {format_metric(key, row[key])}" for key, title in (("ged", "GED"), ("hm_iou", "HM-IoU")))
        console.print(f"{row['method']}: {row['problem'] or ', '.join(scores)}", highlight=False, markup=False)

    for row in filter(None, rows.values()):
        show(row)
    with closing(runner(partial(_train_methods, terms), pending(), _lost_method)) as made:
        for row in made:
            name = row["method"]
            write_text(out / folder_of(name) / ROW, json.dumps({"settings": terms.record(), **row}, indent=2) + "\n")
            show(row)
            rows[name] = row
    return [row for row in rows.values() if row is not None]


def _references(configs: dict[str, TrainConfig], out: Path, terms: Terms) -> References:
    """The scores of the references on the data of all methods, computed once per folder."""
    config, file = next(iter(configs.values())), out / REFERENCES
    settings = {
        "data": config.data.model_dump(mode="json"),
        **{key: value for key, value in terms.record().items() if key in ("split", "samples", "limit", "stochseg")},
    }
    if file.is_file() and (known := json.loads(file.read_text(encoding="utf-8")))["settings"] == settings:
        return cast(References, known["references"])
    references = score_references(open_split(config, terms.split), [terms.options.n], terms.limit)
    write_text(file, json.dumps({"settings": settings, "references": references}, indent=2) + "\n")
    return references


# ---------------------------------------------------------------------- checks before any training


def method_config(method: str, overrides: Sequence[str], data: Path | None, limits: dict[str, Any]) -> TrainConfig:
    """The training of a method with its own settings: "ccdm-fast lr=1e-3". limits: keys of the config to replace."""
    name, *own = method.split() or [method]
    if not all("=" in word for word in own):  # a config file with blanks in its path
        name, own = method, []
    config = recipe(name, [*overrides, *own], data)
    # The last weights are scored whatever their validation, so it is made as small as possible.
    evaluations = 1 if "evaluations" in find_class(config.model.name).sampling_choices else None
    validation = ValidationConfig(every=10**9, images=1, num_samples=2, evaluations=evaluations, calibration_images=0)
    return config.model_copy(update={**limits, "validation": validation})


def _check_data(configs: dict[str, TrainConfig], split: str) -> None:
    """Raise a UserError if data cannot be opened, are empty, or differ between methods."""
    first = next(iter(configs))
    compared = {"name", "options", "crop", "size", "train" if split == "train" else "val"}
    for name, config in configs.items():
        for part in ("train", "val", split):
            if len(open_split(config, part)) == 0:
                raise UserError(f"{name}: the split {part!r} of its data is empty")
        scored, expected = (
            {**each.data.model_dump(mode="json", include=compared), "fit": each.data.fit}
            for each in (config, configs[first])
        )
        if scored != expected:
            raise UserError(
                f"{name} would be scored on other data than {first} ({scored} instead of {expected}), so the two "
                "cannot be compared; use the same --data and data.size for all"
            )


def folder_of(method: str) -> str:
    """Name of the folder of a method."""
    return re.sub(r"[^\w.+-]+", "-", method)


def _finished_row(file: Path, method: str, terms: dict[str, Any]) -> Row | None:
    """Read the row of an earlier call; None if there is none or it failed."""
    if not file.exists():
        return None
    row: Row = json.loads(file.read_text(encoding="utf-8"))
    now, earlier = {"method": method, **terms}, {"method": row["method"], **row.pop("settings")}
    changed = sorted(key for key in now | earlier if earlier.get(key) != now.get(key))
    if changed:
        before, after = (", ".join(str(values.get(key)) for key in changed) for values in (earlier, now))
        raise UserError(
            f"{file.parent} was made with another {', '.join(changed)} ({before} instead of {after}); choose another "
            "--out, or delete that folder"
        )
    return None if row["problem"] else row


# ---------------------------------------------------------------------- one method


Method = tuple[str, TrainConfig, Path]
"""Its name, config and folder."""


def _place(shared: str, devices: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Device and threads of the process that trains."""
    return ((str(pick_device(device)), torch.get_num_threads()) for device in devices)


def _lost_place(device: str) -> tuple[str, int]:
    raise UserError(f"compare: the workers died as they opened the device {device}")


def _train_methods(terms: Terms, shared: str, methods: Sequence[Method]) -> Iterator[Row]:
    return (_run(*method, terms) for method in methods)


def _lost_method(method: Method) -> Row:
    return _empty_row(method[0]) | {"problem": f"its worker died {MAX_DEATHS} times, perhaps for lack of memory"}


def _empty_row(name: str) -> Row:
    return {"method": name, **dict.fromkeys(METRICS, math.nan), "note": "", "problem": ""}


def _run(name: str, config: TrainConfig, folder: Path, terms: Terms) -> Row:
    row = _empty_row(name)
    try:
        train(config, folder / "run", resume=True, device=terms.device, console=Console(quiet=True))
        return row | _scores(_load_trained(folder, config, terms.device), config, folder, terms)
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "problem.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return row | {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _scores(model: StochasticSegmenter, config: TrainConfig, folder: Path, terms: Terms) -> Row:
    progress = json.loads((folder / "run" / "last" / "state" / "progress.json").read_text(encoding="utf-8"))
    data, n = open_split(config, terms.split), terms.options.n
    metrics = evaluate(model, data, options=terms.options_for(model), limit=terms.limit, keep=0).metrics
    return {
        **{key: metrics[f"{key}_{n}"] for key in FAMILIES},
        **{key: metrics[key] for key in METRICS if key in metrics},
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_steps": progress["step"],
        "train_minutes": round(progress["seconds"] / 60, 2),
        "evaluations": round(metrics["evaluations_per_sample"]),
        "seconds_per_sample": metrics["seconds_per_image"] / n,
    }


def _load_trained(folder: Path, config: TrainConfig, device: str) -> StochasticSegmenter:
    """Load the last weights; the entropy grid is measured on validation images, whatever split is scored."""
    model = load(folder / "run" / "last", device=device)
    if model.default_sampling().grid == "entropy":
        images = open_split(config, "val")
        model.calibrate_sampling([images[i].image[None] for i in spread(len(images), 16)])
    return model


def _write_grids(methods: Sequence[str], configs: dict[str, TrainConfig], out: Path, terms: Terms) -> None:
    """Write samples-1.png, …: samples of all methods, for a few images on which the raters disagree."""
    if not methods:
        return
    data = open_split(next(iter(configs.values())), terms.split)
    examples = disputed_examples(data, GRID_IMAGES)
    drawn: list[dict[str, Samples]] = [{} for _ in examples]
    for method in methods:
        model = _load_trained(out / folder_of(method), configs[method], "auto" if terms.device != "cpu" else "cpu")
        options = terms.options_for(model).model_copy(update={"n": GRID_SAMPLES})
        for example, samples in zip(examples, drawn, strict=True):
            samples[method] = model.sample(example.image[None], **options.model_dump(), allow_unusual_input=True).to(
                "cpu"
            )
    for number, (example, samples) in enumerate(zip(examples, drawn, strict=True), start=1):
        write_figure(comparison_grid(example, samples, data.info), out / f"samples-{number}.png")
