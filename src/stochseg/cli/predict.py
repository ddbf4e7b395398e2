"""The command `stochseg predict`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.outcomes import finish, report_outcome
from stochseg.cli.terminal import note, progress_bar
from stochseg.errors import UserError
from stochseg.limits import MAX_SIDE

if TYPE_CHECKING:
    from stochseg.inference import Lesion

EPILOG = (
    "Exit code 0: all inputs are done. 1: some were skipped, each with a message. 2: nothing was started. An "
    "interrupted command continues when it is called again."
)


LESIONS = "Lesions: parts of a scan, cut and scaled as the model declares"
"""Panel of the options of lesions in the help."""
_lesion = partial(typer.Option, rich_help_panel=LESIONS)


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
    rater: opt.Rater = None,
    guidance: opt.Guidance = None,
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
    ] = 16,
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
            "--allow-unusual-input",
            help="Segment inputs whose intensities or size are unlike those of the training images.",
        ),
    ] = False,
    at: Annotated[
        list[str] | None,
        _lesion(metavar="X,Y,Z", help="Segment the lesion at this voxel of a scan; may be repeated."),
    ] = None,
    box: Annotated[
        list[str] | None,
        _lesion(
            metavar="X0,Y0,Z0,X1,Y1,Z1",
            help="Segment the lesion in this box: opposite corners, both inside; may be repeated.",
        ),
    ] = None,
    points: Annotated[
        Path | None,
        _lesion(metavar="FILE.csv", help="Table of lesions: columns id, x, y, z, and input for several scans."),
    ] = None,
    mm: Annotated[
        bool,
        _lesion(
            "--mm",
            help="Coordinates are millimeters, not voxels: RAS for NIfTI, LPS for DICOM, NRRD and MHA. Voxels count "
            "from 0 along the axes of the array, or along the columns, rows and sorted slices of a DICOM series.",
        ),
    ] = False,
    also: opt.Also = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")] = False,
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    scheduler: opt.Scheduler = None,
    part: opt.PartOfInputs = None,
) -> None:
    """Segment files, folders and volumes.

    Writes all samples, the fused map, mean probabilities and entropy as TIFF, NIfTI and DICOM SEG with the geometry of
    the input, an overlay, and result.json with the sizes of all classes."""
    from stochseg.inference import PredictOptions, predict_lesions
    from stochseg.inference import predict as predict_whole
    from stochseg.models import load
    from stochseg.models.hub import local_copy
    from stochseg.models.sampling import SamplingOptions
    from stochseg.parts import Part
    from stochseg.workers import open_pool

    steps = {"evaluations": evaluations, "sampler": sampler, "grid": grid, "noise": noise}
    sampling = SamplingOptions.parse({"n": n, "seed": seed, "rater": rater, "guidance": guidance, **steps})
    across = int(axis) if axis in ("0", "1", "2") else axis
    chosen = {"engine": engine, "tile": tile, "overlap": overlap, "axis": across, "overview": overview}
    chosen |= {"tile_slices": tile_slices, "slices": slices, "allow_unusual_input": allow_unusual_input}
    options = PredictOptions.parse({**sampling.model_dump(), **chosen, "also": also or ()}, where="predict")
    own, lesions = Part.parse(part or "1/1"), _lesions(at or [], box or [], points, mm)
    model = local_copy(model)
    network = load(model, device=opt.own_device(device, workers, scheduler))
    with open_pool(workers, scheduler, device) as pool, progress_bar("predicting") as progress:
        try:
            run = partial(predict_lesions, lesions=lesions, mm=mm) if lesions else predict_whole
            outcomes = run(
                network,
                inputs,
                out=out,
                options=options,
                overwrite=overwrite,
                origin=str(model),
                report=report_outcome,
                progress=progress,
                part=own,
                pool=pool,
            )
        except KeyboardInterrupt:
            change = " without --overwrite" if overwrite else ""
            note(f"stopped; results are in {out}; to continue, run the same command{change} again")
            raise
    finish(outcomes, out)


def _lesions(at: list[str], box: list[str], points: Path | None, mm: bool) -> list[Lesion]:
    """Parse the options of lesions, before a model is loaded."""
    from stochseg.inference.points import parse_lesions, read_lesions

    if points is not None and (at or box):
        raise UserError("--points: expected either a table or --at and --box, got both; add them to the table")
    lesions = parse_lesions(at, box) if points is None else read_lesions(points)
    if mm and not lesions:
        raise UserError("--mm is about coordinates; pass --at, --box or --points, too")
    return lesions
