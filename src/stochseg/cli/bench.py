"""The commands `stochseg bench` and `stochseg compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import PLAIN, Device, Samples, check_writable, console, height_width, messages, numbers, words
from stochseg.errors import UserError


def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run folders, saved or shipped models, or recipes and models by name (with fresh weights, so without "
            "scores), each with numbers of evaluations per sample after an @, e.g. lidc@5,10 lidc-9m@5. Default: "
            "lidc-9m@5.",
            metavar="[MODEL[@EVALUATIONS]]...",
        ),
    ] = None,
    samples: Samples = 16,
    sampler: Annotated[str | None, typer.Option(help="Samplers, several by comma. Default: the model's own.")] = None,
    grid: Annotated[str | None, typer.Option(help="Time grids, several by comma. Default: the model's own.")] = None,
    noise: Annotated[str | None, typer.Option(help="independent or latin, for all. Default: the model's own.")] = None,
    engine: Annotated[str, typer.Option(help="Engines, several by comma.")] = "eager",
    size: Annotated[str, typer.Option(help="Sizes of the image, several by comma: 128, or 128x256.")] = "128",
    data: Annotated[Path | None, typer.Option(help="Also GED and HM-IoU on this packed store (.h5) or folder.")] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many images, evenly spread.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sampling seeds to average over.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timings, of which the median counts.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Also write the rows to this CSV file, and with --data a picture beside it.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Measure what sampling costs (seconds, GFLOP, share of the matrix peak, memory) and, with --data, the scores."""
    from itertools import product

    from rich.table import Table

    from stochseg.data import open_path
    from stochseg.devices import pick_device
    from stochseg.evaluation import check_compatible
    from stochseg.experiments.bench import Case, cost, origin, quality
    from stochseg.experiments.recipes import RECIPES, fresh_model
    from stochseg.files import write_csv
    from stochseg.inference import with_engine
    from stochseg.models import load
    from stochseg.models.io import is_model
    from stochseg.models.registry import is_registered
    from stochseg.models.sampling import SamplingOptions
    from stochseg.plotting import quality_against_cost, write_figure

    if out is not None and out.suffix != ".csv":
        raise UserError(f"--out: expected a file that ends in .csv, got {out}; its picture goes beside it")
    if data is not None and samples < 2:
        raise UserError(f"--data: scores need at least 2 samples an image, got -n {samples}")
    chosen = pick_device(device)
    sizes = [height_width(text.strip()) for text in size.split(",")]
    if out is not None:
        check_writable(out)
    examples = None if data is None else open_path(data, split)
    cases = []
    for text in models or ["lidc-9m@5"]:
        whole = "@" not in text or is_model(Path(text))
        name, _, steps = (text, "", "") if whole else text.rpartition("@")
        fresh = (name in RECIPES or is_registered(name)) and not is_model(Path(name))
        network = fresh_model(name).to(chosen) if fresh else load(name, device=chosen)
        if examples is not None and not fresh:
            check_compatible(network, examples)
        for each in words(engine) or ["eager"]:
            wrapped = with_engine(network, each)
            for way, nodes, count in product(
                words(sampler) or [None], words(grid) or [None], numbers("evaluations after @", steps or None) or [None]
            ):
                options = SamplingOptions(n=samples, evaluations=count, sampler=way, grid=nodes, noise=noise)
                network.check_options(options)
                case = Case(name, wrapped, options, trained=not fresh)
                cases.append(case)
    if examples is not None and not any(case.trained for case in cases):
        raise UserError("--data: expected a trained model to score, got fresh weights alone; give a run or saved model")
    rows = []
    for case in cases:
        scores = {} if examples is None else quality(case, examples, limit=limit, seeds=seeds)
        for each_size in sizes:
            row = cost(case, each_size, repeats=repeats) | scores
            rows.append(row)
            if out is not None:  # what is measured is kept, whatever happens to the next one
                write_csv(out, [{**row, **origin()} for row in rows])
            messages.print(f"{case.name}, {row['engine']}: {row['evaluations']} evaluations done", **PLAIN)
    table = Table(title=f"{samples} samples of one image on {chosen}")
    shown = {
        "evaluations_all_samples": "maps",
        "seconds": "s",
        "core_seconds": "core s",
        "core_seconds_all_steps": "all steps",
        "gflop": "GFLOP",
        "gemm_share": "GEMM",
        "peak_megabytes": "MB",
        f"ged_{samples}": f"GED_{samples}",
        f"hm_iou_{samples}": f"HM-IoU_{samples}",
    }
    shown = {key: name for key, name in shown.items() if key in rows[0]}
    table.add_column("model@evals")
    for name in shown.values():
        table.add_column(name, justify="right")
    varied = [key for key in ("sampler", "grid", "engine", "height", "width") if len({row[key] for row in rows}) > 1]
    for row in rows:
        parts = [f"{row['model']}@{row['evaluations']}", *(row[key] for key in varied)]
        table.add_row(" ".join(map(str, parts)), *(str(row[key]) for key in shown))
    console.print(table)
    console.print(
        "evals: network calls a sample; maps: through the network, for all samples; s: wall clock; core s: over all "
        "cores; all steps: core s with all of a diffusion's steps; GEMM: share of the speed of a large float32 matrix "
        "product; MB: rise of memory"
    )
    if out is not None:
        files = [str(out)]
        if any(row.get(f"ged_{samples}", "") != "" for row in rows):
            files.append(str(write_figure(quality_against_cost(rows, n=samples), out.with_suffix(".png"))))
        console.print(f"written to {' and '.join(files)}", **PLAIN)


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Recipes or models by name, e.g. ccdm-fast prob-unet ssn; or with settings: 'ccdm-fast lr=1e-3'."
        ),
    ],
    budget: Annotated[str, typer.Option(help="Training of each: a time (20m, 90s, 1h) or steps (2000).")] = "20m",
    data: Annotated[
        Path | None, typer.Option(help="A packed store (.h5) or folder. Default: the recipes' own data.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="A change for all, e.g. --set batch_size=16; may be repeated.")
    ] = None,
    split: Annotated[str, typer.Option(help="What to evaluate on: train, val or test.")] = "val",
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=2, help="Number of label maps to sample per image.")
    ] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many images, evenly spread.")] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, help="Network evaluations at most, for methods that make more by default (250 and 1000)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write; finished rows there are kept.")] = Path("runs/compare"),
    device: Device = "auto",
) -> None:
    """Train several methods under the same budget and compare them: one table, a chart, and samples side by side."""
    from rich.table import Table

    from stochseg.experiments.compare import COLUMNS, as_text, ranked
    from stochseg.experiments.compare import compare as run

    rows = run(
        methods,
        data,
        budget,
        out,
        overrides=override or [],
        split=split,
        samples=samples,
        limit=limit,
        evaluations=evaluations,
        device=device,
        console=messages,
    )
    shown = ("method", "ged", "hm_iou", "diversity", "ece", "seconds_per_sample")  # what 80 characters hold
    table = Table(title=f"{budget} of training each, {samples} samples an image")
    for key in shown:
        table.add_column(COLUMNS[key], justify="left" if key == "method" else "right", overflow="fold")
    for row in ranked(rows):
        cells = as_text(row)
        table.add_row(*([row["method"], "failed"] if row["problem"] else [cells[key] for key in shown]))
    console.print(table)
    console.print(f"written to {out}: comparison.csv, comparison.md, comparison.png, samples-1.png …", **PLAIN)
