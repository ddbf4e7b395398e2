"""The command `stochseg calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import console, progress_bar, say, shell_command

if TYPE_CHECKING:
    from rich.table import Table

    from stochseg.models import Calibration
    from stochseg.types import DatasetInfo

EPILOG = (
    "A run: stochseg calibrate runs/mine. A bundled model: stochseg calibrate lidc --data data/lidc.h5 --out "
    "models/lidc. The guarantee is about patients like those of the data, and samples drawn with the same options. Use "
    "cases that the model was not trained on."
)


def calibrate(
    model: opt.RunPath,
    data: opt.DataPath = None,
    split: opt.Split = "val",
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help='Measurement to calibrate, such as "area" or "area of nodule"; repeatable. Default: all that apply.',
        ),
    ] = None,
    confidence: Annotated[
        list[float] | None,
        typer.Option(metavar="P", help="Confidence of intervals and margins; repeatable. Default: 0.9."),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Scaling of the mean probabilities: auto (by likelihood on patients left out), temperature, vector, "
            "none.",
        ),
    ] = "auto",
    limit: opt.Limit = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save a copy of the model with its calibration here. Default: the model."),
    ] = None,
    n: opt.SampleCount = 16,
    evaluations: opt.Evaluations = None,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    scheduler: opt.Scheduler = None,
) -> None:
    """Calibrate a model on held-out cases: probabilities, intervals of measurements, margins of outlines.

    The result is stored with the model; predict, report and studio use it. Intervals and margins of a new patient hold
    with the given confidence, if patients are exchangeable."""
    from stochseg.evaluation import calibrate as fit
    from stochseg.experiments.runs import check_calibrated, open_run, write_calibrated
    from stochseg.inference import run_on
    from stochseg.models import load
    from stochseg.models.sampling import SamplingOptions
    from stochseg.workers import open_pool

    run = open_run(model, data, split)
    check_calibrated(run, out)
    network = load(run.weights, device=opt.own_device(device, workers, scheduler))
    options = SamplingOptions(n=n, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
    with open_pool(workers, scheduler, device) as pool, progress_bar("sampling") as progress:
        found = fit(
            network,
            run.data,
            options=options,
            measures=measure or (),
            confidences=confidence or (0.9,),
            scaling=scaling,  # type: ignore[arg-type]  # checked there
            split=split,
            limit=limit,
            progress=progress,
            runner=run_on(pool, network, run.weights),
        )
    console.print(_table(found, run.data.info))
    if found.scaling is not None:
        say(
            f"{found.scaling.kind} scaling: calibration error of the foreground {found.scaling.ece_before:.4f} before, "
            f"{found.scaling.ece_after:.4f} after, of patients left out"
        )
    folder = write_calibrated(run, network, found, out)
    say(f"written to {folder}. Next: {shell_command('predict', out or model, 'IMAGE')}")


def _table(found: Calibration, info: DatasetInfo) -> Table:
    """What was fitted, and how often it holds for raters of patients left out."""
    from rich.table import Table

    from stochseg.evaluation.calibrating import summarize

    title = f"{found.patients} patients, {found.cases} cases of {found.data}, {found.sampling.n} samples each"
    table = Table(title=title, caption="covered: raters of patients that the fit left out, by patient")
    for column in ("", "confidence", "offset", "covered before", "covered", "width after / before"):
        table.add_column(column, justify="right" if column else "left")
    for row in summarize(found, info):
        offset = "none" if row["offset"] is None else f"{row['offset']:.3f}"
        covered = ("" if row[key] is None else f"{row[key]:.1%}" for key in ("covered_before", "covered"))
        ratio = "" if row["width_ratio"] is None else f"{row['width_ratio']:.2f}"
        table.add_row(str(row["what"]), f"{row['confidence']:.0%}", offset, *covered, ratio)
    return table
