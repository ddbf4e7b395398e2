"""Trained models on disk: the data to score them on, and the folder of their results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stochseg.data import SegmentationData, open_path
from stochseg.errors import UserError, unknown_name
from stochseg.evaluation import Evaluation, evaluations_curve, write_results
from stochseg.files import check_replaceable, write_csv, write_new_folder
from stochseg.locks import locked
from stochseg.models import Calibration, StochasticSegmenter, list_bundled, load, save, store_calibration
from stochseg.models.io import check_writable_model, find_model, is_checkpoint, is_model
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import qualitative, quality_against_evaluations, risk_against_coverage, write_figure
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.run import Curve, read_evaluations
from stochseg.training import TrainConfig, open_split, read_config
from stochseg.training.config import CONFIG_FILE
from stochseg.training.log import LOG_FILE, read_log
from stochseg.workers import Runner

EVALUATIONS = "evaluations"
"""Folder of a run with one folder per evaluation."""


@dataclass(frozen=True)
class Run:
    """A trained model and the data to score it on.

    Attributes:
        path: the run folder or saved model.
        weights: the folder of the weights, such as path/best.
        split: of the data.
        source: path of the data, or the name of a data set without one.
        data: that split.
        config: of the training, None if the model has no run folder.
    """

    path: Path
    weights: Path
    split: str
    source: str
    data: SegmentationData
    config: TrainConfig | None

    def describe(self, result: Evaluation) -> Evaluation:
        """Add what was scored to the settings of an evaluation."""
        return replace(result, settings={**result.settings, **self.record()})

    def record(self) -> dict[str, str]:
        """What is scored, for the settings of an evaluation."""
        return {
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "run": str(self.path),
            "weights": self.weights.name,
            "split": self.split,
            "data_path": self.source,
        }

    def facts(self) -> RunFacts:
        """Read what the run folder holds for its page."""
        earlier = read_evaluations(default_results_dir(self.path))
        return RunFacts(
            f"Report on {self.path.name or self.path}", self.record(), earlier, read_log(self.path / LOG_FILE)
        )


def open_run(path: Path, data: Path | None, split: str, weights: str | None = None) -> Run:
    """Open a trained model's data.

    Args:
        path: a run folder, a saved model, or the name of a bundled one.
        data: a packed store or a folder; None: the data of the run.
        split: "train", "val" or "test".
        weights: "best" or "last" of a run; None: best, or last if there is no best yet.

    Raises:
        UserError: if there is no model or no such data, or a model without a run is given without data.
    """
    file = path / CONFIG_FILE
    config = read_config(file) if file.is_file() else None
    if weights is not None:
        if weights not in ("best", "last"):
            raise unknown_name("weights", weights, ("best", "last"))
        if config is None:
            raise UserError(f"--weights {weights}: expected a run folder, got {path}, a model with one set of weights")
    found = find_model(path if weights is None else path / weights)
    if data is not None:
        return Run(path, found, split, str(data.resolve()), open_path(data, split), config)
    if config is None:
        raise UserError(f"{path} is a model without a run folder, so its data are unknown; pass --data STORE.h5|FOLDER")
    place = config.data.options.get("path", config.data.options.get("root"))
    source = config.data.name if place is None else str(Path(place).resolve())
    return Run(path, found, split, source, open_split(config, split), config)


def check_calibrated(run: Run, out: Path | None) -> None:
    """Raise a UserError if the calibration of a model could not be written: call it before cases are sampled."""
    if out is None:
        check_writable_model(run.weights)
    else:
        check_replaceable(out, ours=is_checkpoint, kind="a saved model")


def write_calibrated(run: Run, model: StochasticSegmenter, calibration: Calibration, out: Path | None) -> Path:
    """Store the calibration of a model with it, under the lock of its run, or with a copy of the model.

    Args:
        run: the model on disk.
        model: the same, loaded.
        calibration: of this model.
        out: folder of the copy; None: the model itself.

    Returns:
        The folder.

    Raises:
        UserError: if a training is writing to the run, or the model was replaced meanwhile.
    """
    if out is not None:
        model.calibration = calibration
        return save(model, out)
    folder = run.weights.parent
    with locked(folder) if (folder / CONFIG_FILE).is_file() else nullcontext():
        now = load(run.weights).state_dict()
        before = model.state_dict()
        if now.keys() != before.keys() or any(not now[key].equal(before[key].cpu()) for key in now):
            raise UserError(
                f"{run.weights} was replaced while its cases were sampled, so the calibration does not belong to it; "
                "calibrate again when its training has ended"
            )
        return store_calibration(run.weights, calibration)


def default_results_dir(model: Path) -> Path:
    """Folder for results on a model: its run folder, or one below runs/ for a model without a run.

    Results never go into the folder of a model itself: a checkpoint with other files in it is not replaced.
    """
    if str(model) in list_bundled() and not is_model(model):
        return Path("runs") / model
    if (model / CONFIG_FILE).is_file():
        return model
    return Path("runs") / "-".join(model.resolve().parts[-2:]).strip(os.sep)


def check_report_source(path: Path) -> None:
    """Raise a UserError that says what is in the folder, unless it is a run, a saved model or a bundled one."""
    try:
        find_model(path)
    except UserError:
        if (path / CONFIG_FILE).is_file():
            raise  # a run without a checkpoint
        expected = f"expected a folder written by `stochseg predict` or `stochseg train` (result.json or {CONFIG_FILE})"
        if not path.exists():
            found = "no such folder"
        elif not path.is_dir():
            found = "it is a file"
        else:
            names = sorted(p.name for p in path.iterdir())
            found = f"got {', '.join(names[:4])}{' …' * (len(names) > 4)}" if names else "it is empty"
        bundled = ", ".join(list_bundled())
        raise UserError(f"{path}: {expected}, or with --data a saved or bundled model ({bundled}); {found}") from None


def write_evaluation(
    result: Evaluation,
    run: Run,
    model: StochasticSegmenter,
    out: Path | None,
    *,
    options: SamplingOptions,
    limit: int | None = None,
    curve: Sequence[int] = (),
    runner: Runner[StochasticSegmenter] | None = None,
) -> Path:
    """Write everything about an evaluation into a folder: scores, a picture of samples, and a page (index.html).

    Args:
        result: of `Run.describe`, with kept examples.
        run: the model on disk and its data.
        model: the model that was evaluated.
        out: the folder to write; None: a new one of the run.
        options: of sampling.
        limit: as it was given to `evaluate`.
        curve: numbers of network evaluations; if any, the quality at each of them is measured and plotted.
        runner: as in `evaluate`.

    Returns:
        The folder.
    """
    measured = None
    if curve:
        points = evaluations_curve(model, run.data, curve, options=options, limit=limit, runner=runner)
        sampler = options.sampler or model.default_sampling().sampler or model.name
        measured = Curve(sampler, points, result.settings["images"])

    def write(folder: Path) -> None:
        write_results(result, folder)
        write_figure(qualitative(result.kept, run.data.info), folder / "samples.png")
        if (kept := result.risk_coverage) is not None:
            write_figure(risk_against_coverage(kept), folder / "risk.png")
        if measured is not None:
            figure = quality_against_evaluations({measured.sampler: measured.points}, n=options.n)
            write_figure(figure, folder / "curve.png")
            write_csv(folder / "curve.csv", [{"evaluations": count, **row} for count, row in measured.points.items()])
        facts = RunFacts(f"Evaluation of {run.path.name or run.path}")
        RunPage(facts, result, run.data.info, curve=measured).write(folder / "index.html")

    if out is not None:
        write(out)
        return out
    return new_evaluation(default_results_dir(run.path), result.settings, write)


def new_evaluation(results: Path, settings: Mapping[str, Any], write: Callable[[Path], object]) -> Path:
    """Write a new evaluation among those of a run, in a folder that names date, split, weights and samples."""
    date = settings["date"].replace(" ", "_").replace(":", "")
    name = f"{date}-{settings['split']}-{settings['weights']}-n{settings['n']}"
    return write_new_folder(results / EVALUATIONS, name, write)
