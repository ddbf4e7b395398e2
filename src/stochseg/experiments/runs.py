"""Trained models on disk: the data to score them on, and the folder of their results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stochseg.data import SegmentationData, open_path
from stochseg.errors import UserError
from stochseg.evaluation import Evaluation, evaluations_curve, write_results
from stochseg.files import write_csv
from stochseg.models import StochasticSegmenter, list_bundled
from stochseg.models.io import find_model, is_model
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import qualitative, quality_against_evaluations, write_figure
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.run import Curve, read_facts
from stochseg.training import TrainConfig, open_split, read_config
from stochseg.training.config import CONFIG_FILE
from stochseg.training.log import LOG_FILE


@dataclass(frozen=True)
class Run:
    """A trained model and the data to score it on. config: of its training, None if the model has no run folder."""

    path: Path
    data: SegmentationData
    config: TrainConfig | None

    @property
    def published(self) -> Mapping[str, float]:
        """Published scores of the recipe."""
        return self.config.published if self.config else {}

    def facts(self) -> RunFacts:
        """Read what the run folder holds for its page."""
        return read_facts(self.path, self.published, LOG_FILE)


def open_run(path: Path, data: Path | None, split: str) -> Run:
    """Open a trained model's data.

    Args:
        path: a run folder, a saved model, or the name of a bundled one.
        data: a packed store or a folder; None: the data of the run.
        split: "train", "val" or "test".

    Raises:
        UserError: if there is no model or no such data, or a model without a run is given without data.
    """
    find_model(path)
    file = path / CONFIG_FILE
    config = read_config(file) if file.is_file() else None
    if data is not None:
        return Run(path, open_path(data, split), config)
    if config is None:
        raise UserError(f"{path} is a model without a run folder, so its data are unknown; pass --data STORE.h5|FOLDER")
    return Run(path, open_split(config, split), config)


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
    folder: Path,
    *,
    options: SamplingOptions,
    limit: int | None = None,
    curve: Sequence[int] = (),
) -> Path:
    """Write everything about an evaluation into a folder: scores, a picture of samples, and a page.

    Args:
        result: of `evaluate`, with kept examples.
        run: the model on disk and its data.
        model: the model that was evaluated.
        folder: the folder to write.
        options: of sampling.
        limit: as it was given to `evaluate`.
        curve: numbers of network evaluations; if any, the quality at each of them is measured and plotted.

    Returns:
        The page.
    """
    write_results(result, folder)
    write_figure(qualitative(result.kept, run.data.info), folder / "samples.png")
    measured = None
    if curve:
        points = evaluations_curve(model, run.data, curve, options=options, limit=limit)
        sampler = options.sampler or model.default_sampling().sampler or model.name
        write_figure(quality_against_evaluations({sampler: points}, n=options.n), folder / "curve.png")
        write_csv(folder / "curve.csv", [{"evaluations": count, **row} for count, row in points.items()])
        measured = Curve(sampler, points, result.settings["images"])
    facts = RunFacts(f"Evaluation of {run.path.name or run.path}", run.published)
    return RunPage(facts, result, run.data.info, curve=measured).write(folder / "index.html")
