"""The command `stochseg bench`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import console, note, say
from stochseg.errors import UserError

EPILOG = "--sampler, --grid, --engine and --size take several values separated by commas."


def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run folders, saved models, bundled models (lidc), or recipes and models by name, which have random "
            "weights and no scores. Numbers of network evaluations follow an @: lidc@5,10. Default: lidc-9m@5.",
            metavar="MODEL[@N,N,…]",
        ),
    ] = None,
    n: opt.SampleCount = 16,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    engine: opt.Engine = "eager",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of the image: 128, or 128x256.")] = "128",
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Packed store (.h5) or folder on which to measure GED and HM-IoU, too."),
    ] = None,
    split: opt.Split = "val",
    limit: opt.Limit = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Average the scores over N sampling seeds.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Number of timings; the median is reported.")] = 3,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="CSV file to write; with --data, also a figure next to it."),
    ] = None,
    device: opt.Device = "auto",
) -> None:
    """Measure the cost of sampling (seconds, GFLOP, memory) and, with --data, the quality of the samples."""
    from stochseg.data import open_path
    from stochseg.devices import pick_device
    from stochseg.experiments.bench import bench_table, make_cases, run_bench
    from stochseg.models.sampling import SamplingOptions

    sizes = [opt.parse_size(text) for text in size.split(",")]
    if out is not None:
        if out.suffix != ".csv":
            raise UserError(f"--out: expected a file that ends in .csv, got {out}")
        opt.check_writable(out)
    cases = make_cases(
        [_parse_model(text) for text in models or ["lidc-9m@5"]],
        SamplingOptions(n=n, noise=noise),
        engines=opt.parse_names(engine) or ["eager"],
        samplers=opt.parse_names(sampler),
        grids=opt.parse_names(grid),
        device=pick_device(device),
    )
    examples = None if data is None else open_path(data, split)
    rows = run_bench(cases, sizes, data=examples, limit=limit, seeds=seeds, repeats=repeats, out=out, report=_report)
    console.print(bench_table(rows))
    if out is not None:
        figure = out.with_suffix(".png")
        with_figure = f" and {figure}" if figure.exists() and data is not None else ""
        say(f"written to {out}{with_figure}")


def _parse_model(text: str) -> tuple[str, list[int]]:
    """Split MODEL@N,N into the model and its numbers of evaluations; an @ may also belong to a path."""
    from stochseg.models.io import is_model

    if "@" not in text or is_model(Path(text)):
        return text, []
    name, _, counts = text.rpartition("@")
    return name, opt.parse_counts("evaluations after @", counts)


def _report(row: Mapping[str, Any]) -> None:
    note(f"{row['model']}, {row['engine']}: {row['evaluations']} evaluations done")
