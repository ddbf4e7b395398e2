"""The command `stochseg compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import console, messages, say

EPILOG = (
    "--evaluations is a maximum, for methods that make more by default (up to 1000). Samplers and grids are settings "
    "of a method: 'ccdm model.options.sampler=ddim'. --protocol fair: three pilots choose the learning rate, one "
    "training gives a learning curve in minutes of one core (--budget 10m,20m,40m,60m), and scores have intervals "
    "by patient; 'all' stands for every model, 'ablations' (ccdm-fast without its advantages one by one) and 'heads' "
    "(other methods on its image tower), 'published' for the larger sizes in print."
)


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Recipes or models by name, e.g. ccdm-fast prob-unet ssn; with settings: 'ccdm-fast lr=1e-3'. With "
            "--protocol fair: all.",
            metavar="METHOD",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="BUDGET", help="Training per method: a time (20m, 90s, 1h) or steps (2000). Default: 20m."
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="equal: the same settings for all. fair: see below.")
    ] = "equal",
    data: opt.RecipeData = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting for all methods, e.g. batch_size=16; repeatable."),
    ] = None,
    split: opt.Split = "val",
    n: opt.SampleCount = 16,
    limit: opt.Limit = None,
    evaluations: opt.Evaluations = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Trainings per method with consecutive seeds; protocol fair only.")
    ] = 1,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write; finished methods in it are kept.")
    ] = Path("runs/compare"),
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    scheduler: opt.Scheduler = None,
) -> None:
    """Train several methods under the same budget and compare them.

    Writes a table, a chart, and pictures of samples side by side."""
    from stochseg.errors import UserError, unknown_name
    from stochseg.experiments.compare import compare as run
    from stochseg.experiments.comparison import comparison_table
    from stochseg.experiments.fair import FairTerms, compare_fair, parse_budgets
    from stochseg.models.sampling import SamplingOptions
    from stochseg.workers import open_pool

    if protocol not in ("equal", "fair"):
        raise unknown_name("protocol", protocol, ("equal", "fair"))
    if protocol == "fair":
        terms = FairTerms(data, parse_budgets(budget), split=split, overrides=tuple(override or ()), seed=seed)
        terms = replace(terms, seeds=seeds)
        if limit is not None:
            terms = replace(terms, images=limit, images_own=min(limit, terms.images_own))
        with open_pool(workers, scheduler, "cpu") as pool:
            compare_fair(methods, terms, out, console=messages, pool=pool)
        say(f"written to {out}: fair.csv, fair.md, fair.png")
        return
    if seeds > 1:
        raise UserError("compare: --seeds is an option of --protocol fair; add it, or omit --seeds")
    budget = budget or "20m"
    with open_pool(workers, scheduler, device) as pool:
        rows = run(
            methods,
            data,
            budget,
            out,
            overrides=override or [],
            split=split,
            options=SamplingOptions(n=n, evaluations=evaluations, noise=noise, seed=seed),
            limit=limit,
            device=device,
            console=messages,
            pool=pool,
        )
    console.print(comparison_table(rows, f"{budget} of training each, {n} samples per image"))
    say(f"written to {out}: comparison.csv, comparison.md, comparison.png, samples-1.png, …")
