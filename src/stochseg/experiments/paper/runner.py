"""Fill the rows of a table: train, score, and keep the scores; finished parts are never computed again."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from stochseg.data import SegmentationData
from stochseg.devices import pick_device
from stochseg.errors import UserError, unknown_name
from stochseg.evaluation import evaluate
from stochseg.evaluation.data_scores import FUSED_COUNTS
from stochseg.experiments.paper.published import PaperTable
from stochseg.experiments.paper.synthetic import write_synthetic
from stochseg.experiments.paper.trainings import DATA, TRAININGS
from stochseg.experiments.provenance import provenance
from stochseg.files import write_text
from stochseg.models import StochasticSegmenter, load
from stochseg.models.registry import find_class
from stochseg.models.sampling import SamplingOptions
from stochseg.networks.encoders.pretrained import RANDOM
from stochseg.training import TrainConfig, open_split, train

SCORES = "scores.json"
SYNTHETIC = "synthetic"
BUDGET = ("scale", "minutes", "synthetic")
"""Settings that make scores not comparable with the paper's."""
SAMPLES = 100
"""Samples per image on LIDC."""


@dataclass(frozen=True)
class RunSettings:
    """How rows are computed.

    Attributes:
        out: Folder of all runs and scores: DATA/ROW/seed-N.
        data: The packed store; None: the default path of the table's data; "synthetic": a stand-in, for small scales.
        seeds: Number of trainings per row.
        scale: Fraction of the optimizer steps and batch size, at least 2 of each, and of the scored images and network
            evaluations; 1 is the experiment of the paper.
        minutes: Instead of a scale: time of each training, and of its scoring, which takes the images that fit.
        encoder_weights: File of pretrained encoder weights, for rows that start with some.
        device: As in `train`.
        synthetic: Whether `data` is such a stand-in.
    """

    out: Path
    data: Path | str | None = None
    seeds: int = 3
    scale: float = 1.0
    minutes: float | None = None
    encoder_weights: str | None = None
    device: str = "auto"
    synthetic: bool = False

    @property
    def budget(self) -> str:
        """What makes the scores not comparable with the paper's; "" for its full experiments."""
        data = " on synthetic data" if self.synthetic else ""
        if self.minutes is not None:
            return f"limited to {self.minutes:g} minutes{data}"
        return "" if self.scale == 1 else f"scaled down to {self.scale:g} of the paper's{data}"

    def scaled(self, number: int, least: int = 1) -> int:
        """Scale a number down, but not below `least`."""
        return max(min(number, least), round(number * self.scale))


def settings_of(record: Mapping[str, Any], out: Path) -> RunSettings:
    """The budget with which scores were computed, from their record."""
    return RunSettings(out, **{key: record[key] for key in BUDGET if key in record})


def run_rows(table: PaperTable, rows: Sequence[str], settings: RunSettings, console: Console) -> list[Path]:
    """Train and score rows of a table.

    A call that is interrupted resumes when it is repeated. Rows may be computed by several processes or machines that
    share `settings.out`, as long as each row belongs to one of them.

    Args:
        table: The table.
        rows: Names of trainings in it; empty: all.
        settings: Data, seeds, scale.
        console: Receives messages.

    Returns:
        The files of the scores.

    Raises:
        UserError: Before any training, for an unknown row, missing data or missing encoder weights.
    """
    if not 0 < settings.scale <= 1:
        raise UserError(f"scale: expected a number above 0 and at most 1, got {settings.scale:g}")
    if settings.minutes is not None and (settings.scale != 1 or settings.minutes <= 0):
        raise UserError(f"minutes: expected a number above 0 and no scale, got {settings.minutes:g}; pass one of both")
    if settings.data == SYNTHETIC:
        if not settings.budget:
            raise UserError("synthetic data are for small experiments; pass --scale 0.001 or --minutes, or real --data")
        file = write_synthetic(DATA[table.data], settings.out / f"{table.data}.h5")
        settings = replace(settings, data=file, synthetic=True)
    for row in rows:
        if row not in table.trainings():
            raise unknown_name(f"row of {table.name}", row, table.trainings())
    jobs = [(row, seed) for row in rows or table.trainings() for seed in range(settings.seeds)]
    configs = {job: training_config(table.data, *job, settings) for job in jobs}
    for config in configs.values():
        for split in ("train", "val", DATA[table.data].split):
            _check_data(open_split(config, split), table.data)
    return [_run(table.data, *job, config, settings, console) for job, config in configs.items()]


def training_config(data: str, row: str, seed: int, settings: RunSettings) -> TrainConfig:
    """The training of a row with one seed, scaled down if so set.

    Raises:
        UserError: If the row starts with pretrained encoder weights and there are none.
    """
    values: dict[str, Any] = copy.deepcopy(TRAININGS[data, row])
    if settings.data is not None:
        values["data"]["options"]["path"] = str(settings.data)
    model, options = values["model"]["name"], values["model"]["options"]
    if "encoder_weights" in options or model.startswith("smp:"):
        if settings.encoder_weights is None and not settings.budget:
            raise UserError(
                f"{data}, row {row}: expected pretrained weights of its encoder, got none; pass --encoder-weights FILE "
                "(docs: reproducing the paper)"
            )
        frozen = "encoder" in options
        options["encoder_weights"] = settings.encoder_weights or (RANDOM if frozen else None)
    values["seed"] = seed
    validation = values["validation"]
    if settings.minutes is not None:
        values["minutes"] = settings.minutes
        validation |= {"every": values["steps"], "images": 2, "num_samples": 2, "calibration_images": 0}
        validation |= {"evaluations": 2} if "evaluations" in validation else {}
    if settings.scale < 1:
        for key in ("steps", "batch_size"):
            values[key] = settings.scaled(values[key], least=2)
        validation["num_samples"] = 2
        for key in {"every", "images", "evaluations"} & validation.keys():
            validation[key] = settings.scaled(validation[key])
        validation["calibration_images"] = 0
        values["data"]["workers"] = 0
    return TrainConfig.parse(values, where=f"{data}/{row}")


def _check_data(data: SegmentationData, name: str) -> None:
    expected = DATA[name]
    if len(data) == 0:
        raise UserError(f"{name}: a split of the store is empty; import it again")
    got = tuple(data[0].image.shape[1:]), data.info.num_classes, data.info.image_channels
    if got != (expected.size, expected.classes, expected.channels):
        raise UserError(
            f"{name}: expected images of {expected.size}, {expected.classes} classes and {expected.channels} "
            f"channel(s), got {got[0]}, {got[1]} and {got[2]}; make the store with: stochseg data import "
            f"{expected.importer} SOURCE {expected.store}"
        )


def _run(data: str, row: str, seed: int, config: TrainConfig, settings: RunSettings, console: Console) -> Path:
    folder = settings.out / data / row / f"seed-{seed}"
    file = folder / SCORES
    name = f"{data} {row}, seed {seed}"
    if file.is_file():
        record = json.loads(file.read_text(encoding="utf-8"))
        earlier = settings_of(record, settings.out)
        if earlier.budget != settings.budget:
            raise UserError(
                f"{folder} was made {earlier.budget or 'in full'}, not {settings.budget or 'in full'}; delete it or "
                "choose another --out"
            )
        console.print(f"{name}: done before", highlight=False, markup=False)
        return file
    length = f"{config.steps:,} steps" if config.minutes is None else f"{config.minutes:g} minutes"
    console.print(f"{name}: training for {length}", highlight=False, markup=False)
    train(config, folder / "run", resume=True, device=settings.device, console=console)
    console.print(f"{name}: scoring", highlight=False, markup=False)
    scores = _score(data, folder / "run", config, settings)
    budget = {key: getattr(settings, key) for key in BUDGET}
    record = {"data": data, "row": row, "seed": seed, **budget, "scores": scores, **provenance()}
    write_text(file, json.dumps(record, indent=2) + "\n")
    return file


def _score(name: str, run: Path, config: TrainConfig, settings: RunSettings) -> dict[str, float]:
    """The scores of a finished training by the paper's protocol: `evaluate`, as the command of that name."""
    data, device = open_split(config, DATA[name].split), pick_device(settings.device)
    if DATA[name].classes == 2:
        return _evaluate(load(run / "best", device=device), data, SAMPLES, config.seed, settings)
    iterative = "evaluations" in find_class(config.model.name).sampling_choices
    n = max(FUSED_COUNTS) if iterative else 1
    scores: dict[str, float] = {}
    for prefix, weights in (("", "last"), ("best_", "best")):
        found = _evaluate(load(run / weights, device=device), data, n, config.seed, settings)
        scores |= {f"{prefix}{key}": value for key, value in found.items() if key.startswith("miou_")}
    return scores


def _evaluate(
    model: StochasticSegmenter, data: SegmentationData, n: int, seed: int, settings: RunSettings
) -> dict[str, float]:
    most, limit = model.default_sampling().evaluations, None
    evaluations = None if most is None or settings.scale == 1 else settings.scaled(most)
    options = SamplingOptions(n=n, evaluations=evaluations, noise="independent", seed=seed)
    if settings.scale < 1:
        limit = settings.scaled(len(data))
    if settings.minutes is not None:  # as many images as fit, by the time of the first
        start = time.perf_counter()
        evaluate(model, data, options=options, limit=1, keep=0)
        limit = max(1, int(60 * settings.minutes / (time.perf_counter() - start)))
    return evaluate(model, data, options=options, limit=limit, keep=0).metrics
