"""The command `stochseg evaluate`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import console, note, progress_bar, say
from stochseg.errors import UserError


def evaluate(
    run: opt.RunPath,
    n: opt.ProtocolCount = None,
    evaluations: opt.Evaluations = None,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sampling seeds, from --seed on; scores are mean ± deviation.")
    ] = 1,
    rater: opt.Rater = None,
    guidance: opt.Guidance = None,
    data: opt.DataPath = None,
    split: opt.Split = "val",
    weights: Annotated[
        str | None, typer.Option(metavar="NAME", help="Checkpoint of the run: best or last. Default: best.")
    ] = None,
    limit: opt.Limit = None,
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Also plot quality against network evaluations, e.g. 5,10,25,250."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write. Default: a new one in RUN/evaluations; below runs/ for a model without a run.",
        ),
    ] = None,
    engine: opt.Engine = "eager",
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    scheduler: opt.Scheduler = None,
    part: opt.PartOfImages = None,
) -> None:
    """Compare samples of a model with the raters: GED, HM-IoU, diversity, mIoU, calibration, time.

    Writes JSON, CSV, a picture and a page; earlier evaluations are kept. Checkpoints are selected on val; use --split
    test for unseen data."""
    from stochseg.evaluation import (
        PARTS,
        StoredScores,
        check_compatible,
        class_table,
        default_count,
        evaluate_seeds,
        rated_by,
        reference_table,
        table,
    )
    from stochseg.experiments.runs import EVALUATIONS, default_results_dir, open_run, write_evaluation
    from stochseg.inference import hash_loaded, run_on, with_engine
    from stochseg.models import load
    from stochseg.models.hub import local_copy
    from stochseg.models.sampling import SamplingOptions
    from stochseg.parts import Part
    from stochseg.workers import open_pool, run_here

    points, own = opt.parse_counts("--curve", curve), None if part is None else Part.parse(part)
    if own is not None and out is None:
        raise UserError("--part: pass --out FOLDER, too, the same for all parts")
    run = local_copy(run)
    source = open_run(run, data, split, weights)
    model = load(source.weights, device=opt.own_device(device, workers, scheduler))
    checksum = f"{hash_loaded(model)} {engine}"
    if workers is None and scheduler is None:  # an engine may need the device of the workers
        model = with_engine(model, engine)
    check_compatible(model, source.data)
    asked = {"evaluations": evaluations, "sampler": sampler, "grid": grid, "noise": noise, "seed": seed}
    options = SamplingOptions.parse(
        {**asked, "n": n or default_count(source.data), "rater": rater, "guidance": guidance}, where="evaluate"
    )
    for count in (evaluations, *points):
        model.check_options(options.model_copy(update={"evaluations": count}))
    source = replace(source, data=rated_by(source.data, model, options))
    folder = out or default_results_dir(run) / EVALUATIONS
    if (folder / "metrics.json").exists():
        raise UserError(f"--out: {folder} already contains an evaluation, which is kept; choose another folder")
    opt.check_writable(folder / "metrics.json")
    if options.n == 1:
        note("one sample per image: diversity and the unbiased scores need two and are left out")
    stored = StoredScores(folder / PARTS, checksum)
    with open_pool(workers, scheduler, device) as pool:
        runner = run_on(pool, model, source.weights, engine)
        if own is not None:
            ways = [options.model_copy(update={"seed": each}) for each in range(seed, seed + seeds)]
            ways += [options.model_copy(update={"evaluations": count}) for count in points]
            with progress_bar("evaluating") as progress:
                count = stored.write(model, source.data, own, ways, limit=limit, progress=progress, runner=runner)
            say(f"{count} images scored in {stored.folder}; after all parts, repeat the command without --part")
            return
        if stored.folder.is_dir():
            runner = stored.runner(runner or partial(run_here, lambda: model))
        with progress_bar("evaluating") as progress:
            scores = evaluate_seeds(
                model, source.data, seeds, options=options, limit=limit, progress=progress, runner=runner
            )
        result = source.describe(scores.with_references(source.data, limit))
        for each in (table(result), class_table(result), reference_table(result)):
            if each is not None:
                console.print(each)
        written = write_evaluation(
            result, source, model, out, options=options, limit=limit, curve=points, runner=runner
        )
    say(f"written to {written}; open {written / 'index.html'}")
