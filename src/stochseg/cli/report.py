"""The command `stochseg report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import progress_bar, progress_bars, say

EPILOG = (
    'Predictions: stochseg report predictions --spacing 0.7 --ask "longest diameter > 6 mm". A run: stochseg report '
    "runs/mine --limit 50. A bundled model: stochseg report lidc --data data/lidc.h5. Options of sampling, data, "
    "engine and device apply to runs and models only."
)


def report(
    path: Annotated[
        Path,
        typer.Argument(
            help="Folder written by `predict`, or a run folder; with --data also a saved model or the name of a "
            "bundled one (lidc).",
            metavar="PREDICTIONS|RUN",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Page to write. Default: report.html in the folder; below runs/ for a model without a run.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Use at most N evenly spaced images. Default: 100; 200 for a run."),
    ] = None,
    spacing: Annotated[
        str | None,
        typer.Option(metavar="MM[,MM]", help="Pixel size in mm, for images without one: 0.7 or ROW,COLUMN 0.7,0.5."),
    ] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help='Question per image, e.g. "longest diameter > 6 mm"; repeatable.'),
    ] = None,
    n: opt.SampleCount = 32,
    evaluations: opt.Evaluations = None,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    data: opt.DataPath = None,
    split: opt.Split = "val",
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Network evaluations of the quality curve, or none. Default: 2,5,10,25."),
    ] = None,
    curve_images: Annotated[int, typer.Option(min=1, metavar="N", help="Images of the quality curve.")] = 20,
    engine: opt.Engine = "eager",
    device: opt.Device = "auto",
) -> None:
    """Write one self-contained HTML page about predictions or about a trained model.

    Predictions: outlines, readings with probabilities, measurements. Model: metrics, calibration, best and worst images
    next to the raters."""
    from stochseg.analysis import Question
    from stochseg.devices import pick_device
    from stochseg.experiments.runs import check_report_source, default_results_dir, open_run
    from stochseg.inference import with_engine
    from stochseg.models import load
    from stochseg.models.hub import local_copy
    from stochseg.models.sampling import SamplingOptions
    from stochseg.reports import is_predictions, report_predictions, report_run

    questions, mm = [Question.parse(text) for text in ask or []], opt.parse_spacing(spacing)
    points = None if curve is None else [] if curve.strip() == "none" else opt.parse_counts("--curve", curve)
    if data is None and is_predictions(path):
        page = out or path / "report.html"
        opt.check_writable(page)
        with progress_bar("drawing") as progress:
            answers = report_predictions(
                path, page, limit=limit or 100, spacing=mm, questions=questions, progress=progress
            )
        for line in answers:
            say(line)
    else:
        path = local_copy(path)
        check_report_source(path)
        run = open_run(path, data, split)
        model = with_engine(load(run.weights, device=pick_device(device)), engine)
        page = out or default_results_dir(path) / "report.html"
        opt.check_writable(page)  # before sampling starts
        options = SamplingOptions(n=n, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
        with progress_bars() as show:
            report_run(
                model,
                run.data,
                page,
                run.facts(),
                options=options,
                limit=limit or 200,
                curve=points,
                curve_images=curve_images,
                spacing=mm,
                questions=questions,
                progress=show,
            )
    say(f"written to {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser")
