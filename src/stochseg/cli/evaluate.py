"""The command `stochseg evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import console, progress_bar, say


def evaluate(
    run: opt.RunPath,
    n: opt.SampleCount = 100,
    evaluations: opt.Evaluations = None,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    data: opt.DataPath = None,
    split: opt.Split = "val",
    limit: opt.Limit = None,
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Also plot quality against network evaluations, e.g. 5,10,25,250."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder to write. Default: RUN/evaluation; below runs/ for a model without a run."
        ),
    ] = None,
    engine: opt.Engine = "eager",
    device: opt.Device = "auto",
) -> None:
    """Compare samples of a model with the raters: GED, HM-IoU, diversity, mIoU, calibration, time.

    Writes JSON, CSV, a picture and a page. Checkpoints are selected on val; use --split test for unseen data."""
    from stochseg.devices import pick_device
    from stochseg.evaluation import check_compatible, table
    from stochseg.evaluation import evaluate as compute
    from stochseg.experiments.runs import default_results_dir, open_run, write_evaluation
    from stochseg.inference import with_engine
    from stochseg.models import load
    from stochseg.models.sampling import SamplingOptions

    points = opt.parse_counts("--curve", curve)
    source = open_run(run, data, split)
    model = with_engine(load(run, device=pick_device(device)), engine)
    check_compatible(model, source.data)
    options = SamplingOptions(n=n, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
    for count in (evaluations, *points):
        model.check_options(options.model_copy(update={"evaluations": count}))
    folder = out or default_results_dir(run) / "evaluation"
    opt.check_writable(folder / "metrics.json")
    with progress_bar("evaluating") as progress:
        result = compute(model, source.data, options=options, limit=limit, progress=progress)
    console.print(table(result, source.published))
    page = write_evaluation(result, source, model, folder, options=options, limit=limit, curve=points)
    say(f"written to {folder}; open {page}")
