"""The command `stochseg gather`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli import options as opt
from stochseg.cli.outcomes import finish, report_outcome
from stochseg.cli.terminal import progress_bar
from stochseg.limits import MAX_SAMPLES

EPILOG = (
    "Folds of nnU-Net: stochseg gather fold_0 fold_1 fold_2 --images imagesTs. Raters: stochseg gather labels/ "
    "--images images/. One case: stochseg gather a.nii.gz b.nii.gz c.nii.gz --images ct.nii.gz. Next: stochseg report "
    "predictions. Exit codes are those of predict."
)


def gather(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="PREDICTIONS",
            help="Folders of members with one file per case, a folder of such folders, or the files of one case: "
            "NIfTI, NRRD, MetaImage, PNG, TIFF, .npy, and the .npz archives of nnU-Net.",
        ),
    ],
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="The segmented images: file, folder or glob; repeatable. Channels of nnU-Net (_0000) are understood. "
            "Default: the predictions state the geometry.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write, with one folder per case.")] = Path(
        "predictions"
    ),
    layout: Annotated[
        str,
        typer.Option(metavar="NAME", help="members: a folder per member; cases: a folder per case, with its members."),
    ] = "members",
    kind: Annotated[
        str, typer.Option(metavar="NAME", help="What files contain: auto, labels or probabilities (also of 8 bits).")
    ] = "auto",
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…", help="Names of the labels 0, 1, …. Default: those of dataset.json of nnU-Net."
        ),
    ] = None,
    n: Annotated[
        int,
        typer.Option(
            "--samples", "-n", min=1, max=MAX_SAMPLES, metavar="N", help="Samples per case with one soft map."
        ),
    ] = 16,
    coherence: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="MM",
            help="Distance in mm (pixels of a picture) over which samples of a soft map vary together. Default: all of "
            "it varies together, the widest spread that the map allows.",
        ),
    ] = None,
    seed: opt.Seed = 0,
    axis: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Slices of volumes, as for predict: axial, …, or 0, 1, 2.")
    ] = None,
    overview: Annotated[
        bool, typer.Option("--overview", help="Also write overview.png per case, a picture of all samples.")
    ] = False,
    also: opt.Also = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")] = False,
) -> None:
    """Turn predictions of any segmenter into samples: ensembles, folds, MC dropout, raters, soft maps.

    Writes what predict writes, in the geometry of the images: samples, fused map, mean probabilities, entropy, DICOM
    SEG, an overlay, sizes and a confidence per structure."""
    from stochseg.inference import GatherOptions
    from stochseg.inference import gather as run

    chosen: dict[str, object] = {
        "layout": layout,
        "kind": kind,
        "n": n,
        "coherence": coherence,
        "seed": seed,
        "overview": overview,
    }
    across = int(axis) if axis is not None and axis.isdecimal() else axis
    chosen |= {"classes": opt.parse_names(classes), "axis": across, "also": also or ()}
    options = GatherOptions.parse(chosen, where="gather")
    with progress_bar("gathering") as progress:
        outcomes = run(
            inputs, out, images or (), options, overwrite=overwrite, report=report_outcome, progress=progress
        )
    finish(outcomes, out)
