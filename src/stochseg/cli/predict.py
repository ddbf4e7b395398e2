"""The command `stochseg predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.terminal import note, progress_bar, say
from stochseg.limits import MAX_SIDE

if TYPE_CHECKING:
    from stochseg.inference import Outcome

EPILOG = (
    "Exit code 0: all inputs are done. 1: some were skipped, each with a message. 2: nothing was started. An "
    "interrupted command continues when it is called again."
)


def predict(
    model: opt.ModelPath,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders and globs: PNG, JPEG, TIFF, NIfTI and DICOM files, folders of DICOM series. A model "
            "of images segments volumes slice by slice.",
            metavar="INPUT",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write, with one folder per input.")] = Path(
        "predictions"
    ),
    n: opt.SampleCount = 16,
    evaluations: opt.Evaluations = None,
    sampler: opt.Sampler = None,
    grid: opt.Grid = None,
    noise: opt.Noise = None,
    seed: opt.Seed = 0,
    engine: opt.Engine = "eager",
    axis: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS",
            help="Slices of NIfTI volumes: axial, coronal, sagittal, or an axis 0, 1, 2 of the array. Default: across "
            "the axis of length 1 or of clearly the largest spacing, otherwise axial.",
        ),
    ] = None,
    tile: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_SIDE,
            metavar="N",
            help="Tile images larger than N pixels per side; 0 disables tiling. Default: 512 (320 for "
            "volumes) if the model supports it.",
        ),
    ] = None,
    overlap: Annotated[
        int, typer.Option(min=8, max=MAX_SIDE, metavar="N", help="Overlap of neighboring tiles in pixels.")
    ] = 96,
    tile_slices: Annotated[
        int, typer.Option(min=4, max=MAX_SIDE, metavar="N", help="Slices per tile, for models of volumes.")
    ] = 32,
    slices: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Noise of the slices of a volume, for models of images: shared (default), so that a sample is one "
            "reading of the volume, or independent.",
        ),
    ] = None,
    overview: Annotated[
        bool, typer.Option("--overview", help="Also write overview.png per input, a picture of all samples.")
    ] = False,
    allow_unusual_input: Annotated[
        bool,
        typer.Option(
            "--allow-unusual-input", help="Segment inputs whose intensities are unlike those of the training images."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")] = False,
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    scheduler: opt.Scheduler = None,
    part: opt.PartOfInputs = None,
) -> None:
    """Segment files, folders and volumes.

    Writes all samples, the fused map, mean probabilities and entropy as TIFF, NIfTI and DICOM SEG with the geometry of
    the input, an overlay, and result.json with the sizes of all classes."""
    from stochseg.inference import Part, PredictOptions
    from stochseg.inference import predict as run
    from stochseg.models import load
    from stochseg.models.sampling import SamplingOptions
    from stochseg.workers import open_pool

    sampling = SamplingOptions(n=n, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
    across = int(axis) if axis is not None and axis.isdecimal() else axis
    chosen = {"engine": engine, "tile": tile, "overlap": overlap, "axis": across, "overview": overview}
    chosen |= {"tile_slices": tile_slices, "slices": slices, "allow_unusual_input": allow_unusual_input}
    options = PredictOptions.parse({**sampling.model_dump(), **chosen}, where="predict")
    own = Part.parse(part or "1/1")
    network = load(model, device=opt.own_device(device, workers, scheduler))
    with open_pool(workers, scheduler, device) as pool, progress_bar("predicting") as progress:
        try:
            outcomes = run(
                network,
                inputs,
                out,
                options,
                overwrite=overwrite,
                origin=str(model),
                report=_report,
                progress=progress,
                part=own,
                pool=pool,
            )
        except KeyboardInterrupt:
            change = " without --overwrite" if overwrite else ""
            note(f"stopped; results are in {out}; to continue, run the same command{change} again")
            raise
    done, kept, failed = (sum(o.status == status for o in outcomes) for status in ("done", "kept", "failed"))
    counts = {"done": done, "already done": kept, "skipped": failed}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "done")
    where = f"results in {out}" if done or kept else "nothing was written"
    say(f"{words}; {where}")
    if failed:
        raise typer.Exit(1)


def _report(outcome: Outcome) -> None:
    for notice in outcome.notices:
        note(f"note: {outcome.source}: {notice}" if outcome.source else f"note: {notice}")
    if outcome.status == "failed":
        note(f"skipped: {outcome.source}: {outcome.problem}")
    elif outcome.status == "done":
        say(f"{outcome.source} -> {outcome.folder}")
