"""The command `stochseg report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochseg.cli.options import PLAIN, check_writable, console, home, messages, open_run
from stochseg.errors import UserError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from stochseg.data import SegmentationData
    from stochseg.reports import RunFacts


def report(
    path: Annotated[
        Path,
        typer.Argument(
            help="What `predict` wrote, or a run folder of `train`; with --data also a saved or shipped model (lidc).",
            metavar="PREDICTIONS|RUN",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page. Default: report.html in that folder; below runs/ for a model without a run."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many images, evenly spread. Default: 100 inputs, 200 of a split.")
    ] = None,
    spacing: Annotated[
        str | None,
        typer.Option(help="Millimeters a pixel, row and column, of images that do not state them: 0.7 or 0.7,0.5."),
    ] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option(help='Answer for every image shown, e.g. --ask "longest diameter > 6 mm"; may be repeated.'),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=2, help="RUN: number of label maps to sample per image.")
    ] = 32,
    evaluations: Annotated[int | None, typer.Option(min=1, help="RUN: network evaluations per sample.")] = None,
    sampler: Annotated[str | None, typer.Option(help="RUN: sampling algorithm.")] = None,
    grid: Annotated[
        str | None, typer.Option(help="RUN: which diffusion steps are taken: even, trailing, entropy.")
    ] = None,
    noise: Annotated[str | None, typer.Option(help="RUN: independent, or latin (stratified samples).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="RUN: same seed, same samples.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="RUN: this packed store (.h5) or folder instead of the run's data.")
    ] = None,
    split: Annotated[str, typer.Option(help="RUN: train, val or test; val chose the best checkpoint.")] = "val",
    curve: Annotated[
        str | None,
        typer.Option(help="RUN: quality against these numbers of steps, or none. Default: 2,5,10,25."),
    ] = None,
    curve_images: Annotated[int, typer.Option(min=1, help="RUN: images of that curve.")] = 20,
    engine: Annotated[str, typer.Option(help="RUN: inference backend.")] = "eager",
    device: Annotated[str, typer.Option(help="RUN: auto, cpu, cuda, cuda:1, mps …")] = "auto",
) -> None:
    """Write one HTML page, without any other file, about predictions (outlines, readings with probabilities,
    measurements) or about a trained model (metrics, calibration, best and worst cases beside the raters)."""
    from rich.progress import Progress

    from stochseg.analysis import Question
    from stochseg.devices import pick_device
    from stochseg.inference import with_engine
    from stochseg.models import load
    from stochseg.models.sampling import SamplingOptions
    from stochseg.reports import is_predictions, report_predictions, report_run

    questions = [Question.parse(text) for text in ask or []]
    mm, points = _millimeters(spacing), _points(curve)
    predictions = data is None and is_predictions(path)
    if not predictions:
        facts, examples = _open_run(path, data, split)
        network = with_engine(load(path, device=pick_device(device)), engine)
    page = out or (path if predictions else home(path)) / "report.html"
    check_writable(page)  # before any sample is drawn
    options = SamplingOptions(n=samples, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
    answers: list[str] = []
    with Progress(console=messages, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        if predictions:
            answers = report_predictions(
                path,
                page,
                limit=limit or 100,
                spacing=mm,
                questions=questions,
                progress=lambda done, total: progress("drawing", done, total),
            )
        else:
            report_run(
                network,
                examples,
                page,
                facts,
                options=options,
                limit=limit or 200,
                curve=points,
                curve_images=curve_images,
                spacing=mm,
                questions=questions,
                progress=progress,
            )
    for line in answers:
        console.print(line, **PLAIN)
    console.print(f"written to {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser", **PLAIN)


def _open_run(path: Path, data: Path | None, split: str) -> tuple[RunFacts, SegmentationData]:
    """What is known of the run, and the data to compare it on."""
    from stochseg.models.io import find_model, list_bundled
    from stochseg.reports.run import read_facts
    from stochseg.training.log import LOG_FILE
    from stochseg.training.loop import CONFIG_FILE

    wanted = "expected a folder that `stochseg predict` or `stochseg train` wrote"
    if not path.exists() and str(path) not in list_bundled():
        names = ", ".join(list_bundled())
        raise UserError(f"{path}: {wanted}, or with --data a bundled model ({names}); no such folder")
    if not (path / CONFIG_FILE).is_file():
        try:
            find_model(path)
        except UserError:
            inside = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
            got = f"got {', '.join(inside[:4])}{' …' * (len(inside) > 4)}" if inside else "it is empty"
            got = got if path.is_dir() else "it is a file"
            raise UserError(f"{path}: {wanted}, with result.json or {CONFIG_FILE} in it; {got}") from None
    config, examples = open_run(path, data, split)
    return read_facts(path, config.published if config else {}, LOG_FILE), examples


def _millimeters(text: str | None) -> tuple[float, float] | None:
    try:
        values = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        values = [0.0]
    if len(values) > 2 or not all(0 < value < float("inf") for value in values):
        raise UserError(f"--spacing: expected millimeters a pixel, as 0.7 or row,column as 0.7,0.5; got {text!r}")
    return (values[0], values[-1]) if values else None


def _points(text: str | None) -> list[int] | None:
    """None: not asked for; empty: not wanted."""
    if text is None or text.strip() == "none":
        return None if text is None else []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--curve: expected numbers of steps with commas between, e.g. 5,10,25, or none; got {text!r}")
    return [int(part) for part in parts]
