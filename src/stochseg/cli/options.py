"""Options that several commands share, each declared once, and their parsers."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochseg.errors import UserError
from stochseg.limits import MAX_EVALUATIONS, MAX_SAMPLES, MAX_SEED, MAX_SIDE, MAX_WORKERS, check_memory

if TYPE_CHECKING:
    import torch

SAMPLING = "Sampling"
"""Panel of the sampling options in the help."""
_sampling = partial(typer.Option, rich_help_panel=SAMPLING)
_name = partial(_sampling, metavar="NAME")

ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Run folder, saved model, bundled model (lidc), or hf:OWNER/NAME.")
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="Run folder; with --data also a saved model, a bundled one (lidc) or hf:OWNER/NAME."
    ),
]
_count = partial(_sampling, "--samples", "-n", min=1, max=MAX_SAMPLES, metavar="N", help="Samples per image.")
SampleCount = Annotated[int, _count()]
ProtocolCount = Annotated[int | None, _count(show_default="100; 10 for one label map per image")]
Evaluations = Annotated[
    int | None,
    _sampling(
        min=1, max=MAX_EVALUATIONS, metavar="N", help="Network evaluations per sample. Default: the model's setting."
    ),
]
Sampler = Annotated[
    str | None,
    _name(
        help="Sampling algorithm: ancestral, sticky, ddim, corrector, one-step-kernel (rule of the paper's code), or "
        "one that the model documents. Default: the model's setting."
    ),
]
Grid = Annotated[
    str | None,
    _name(help="Time steps at which the network is evaluated: even, trailing, entropy. Default: the model's setting."),
]
Noise = Annotated[
    str | None,
    _name(help="independent, or latin: the samples of an image are stratified. Default: the model's setting."),
]
Seed = Annotated[
    int, _sampling(min=0, max=MAX_SEED, metavar="N", help="Random seed; the same seed gives the same samples.")
]
Rater = Annotated[
    str | None,
    _name(help="Draw as this rater would, by name or number, with models that know their raters. Default: any."),
]
Guidance = Annotated[
    float | None,
    _sampling(
        min=0, max=10, metavar="W", help="With --rater: 0 is any rater, 1 (default) this one; above 1 exaggerates."
    ),
]
Engine = Annotated[
    str, typer.Option(metavar="NAME", help="Inference engine: eager, compile, onnx (CPU), bfloat16, cuda-graphs.")
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Further outputs, repeatable: dicom-maps (probabilities as fractional DICOM SEG and entropy as parametric "
        "map, for DICOM series), geojson (outlines for QuPath, of pictures), calibrated-mean (probabilities after the "
        "scaling of `calibrate`).",
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, mps, …")]
MACHINES = "Many processes and machines"
"""Panel of the options that spread the work."""
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_WORKERS,
        metavar="N",
        rich_help_panel=MACHINES,
        help="Start N worker processes here, which share cores and GPUs (extra dask).",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=MACHINES,
        help="Use the workers of a Dask cluster, e.g. tcp://node7:8786. They must see the same files.",
    ),
]
_part = partial(typer.Option, "--part", metavar="I/N", rich_help_panel=MACHINES)
PartOfInputs = Annotated[
    str | None,
    _part(
        help="Process part I of N of the inputs; all parts may write to one folder at the same time. slurm: the task "
        "of a SLURM job array.",
    ),
]
PartOfImages = Annotated[
    str | None,
    _part(
        help="Score part I of N of the images into --out, the same for all parts, which may run at the same time; the "
        "command without --part then adds them up. slurm: the task of a SLURM job array.",
    ),
]
RecipeData = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Packed store (.h5) or folder to use instead of the recipe's data.")
]
DataPath = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Packed store (.h5) or folder to use instead of the run's data.")
]
Split = Annotated[str, typer.Option(metavar="NAME", help="train, val or test.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use at most N evenly spaced images.")]


def parse_names(text: str | None) -> list[str]:
    """Split a list of names at its commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def parse_counts(option: str, text: str | None) -> list[int]:
    """Parse numbers of at least 1, separated by commas. option: its name, for the error message."""
    try:
        counts = [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if not all(1 <= count <= MAX_EVALUATIONS for count in counts):
        raise UserError(
            f"{option}: expected numbers of 1 to {MAX_EVALUATIONS}, separated by commas, e.g. 5,10,25; got {text!r}"
        )
    return counts


def parse_size(text: str) -> tuple[int, int]:
    """Parse --size, such as 128 or 128x256, into height and width."""
    parts = text.strip().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and len(part) < 9 and 0 < int(part) <= MAX_SIDE for part in parts):
        raise UserError(
            f"--size: expected a number of pixels such as 128, or HEIGHTxWIDTH such as 128x256, up to {MAX_SIDE}; got "
            f"{text!r}"
        )
    height, width = int(parts[0]), int(parts[-1])
    check_memory(16 * height * width, f"--size {text}")
    return height, width


def parse_spacing(text: str | None) -> tuple[float, float] | None:
    """Parse --spacing, such as 0.7 or 0.7,0.5, into millimeters per pixel (row, column)."""
    try:
        values = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        values = [0.0]
    if len(values) > 2 or not all(0 < value < float("inf") for value in values):
        raise UserError(f"--spacing: expected millimeters per pixel, such as 0.7 or ROW,COLUMN 0.7,0.5; got {text!r}")
    return (values[0], values[-1]) if values else None


def own_device(device: str, workers: int | None, scheduler: str | None) -> torch.device:
    """The device of --device for this process; the CPU if workers compute."""
    from stochseg.devices import pick_device

    return pick_device(device if workers is None and scheduler is None else "cpu")


def check_writable(file: Path) -> None:
    """Raise a UserError if the file of --out cannot be written: call it before work that would be lost."""
    if file.is_dir():
        raise UserError(f"--out {file} is a folder; pass the name of a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise UserError(f"--out: {file} cannot be written ({error.strerror}); choose another path") from None
