"""What the commands share: where they print, and their options."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from stochseg.errors import UserError

if TYPE_CHECKING:
    from stochseg.data import SegmentationData
    from stochseg.training import TrainConfig

console = Console()
messages = Console(stderr=True)

# For text with paths in it, which may hold brackets and be longer than a line.
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps …")]
Samples = Annotated[int, typer.Option("--samples", "-n", min=1, help="Number of label maps to sample per image.")]
Evaluations = Annotated[
    int | None, typer.Option(min=1, help="Network evaluations per sample. Default: the model's own.")
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same samples.")]
Engine = Annotated[str, typer.Option(help="Inference backend: eager, compile, onnx (CPU), bfloat16, cuda-graphs.")]
SamplerName = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help="Sampling algorithm: ancestral, sticky, ddim, corrector (for models that diffuse labels; others have "
        "their own). Default: the model's own.",
    ),
]
GridName = Annotated[
    str | None,
    typer.Option("--grid", help="Which diffusion steps are taken: even, trailing, entropy. Default: the model's."),
]
NoiseName = Annotated[
    str | None,
    typer.Option(
        "--noise", help="independent, or latin (the samples of an image are stratified). Default: the model's own."
    ),
]


def home(model: Path) -> Path:
    """Where results on a model go if nothing else is said: into its run, or below runs/ for one without, whose folder
    is the model's alone (a checkpoint with results inside would not be replaced by the next one)."""
    from stochseg.models.io import SHIPPED, find_model
    from stochseg.training.loop import CONFIG_FILE

    if (found := find_model(model)).is_relative_to(SHIPPED):
        return Path("runs") / found.name
    if (model / CONFIG_FILE).is_file():
        return model
    return Path("runs") / "-".join(model.resolve().parts[-2:]).strip(os.sep)


def open_run(model: Path, data: Path | None, split: str) -> tuple[TrainConfig | None, SegmentationData]:
    """The training config, of a model that has a run, and what to score it on: the run's data, or that at `data`."""
    from stochseg.data import open_path
    from stochseg.models.io import find_model
    from stochseg.training import open_split, read_config
    from stochseg.training.loop import CONFIG_FILE

    find_model(model)
    config = read_config(model / CONFIG_FILE) if (model / CONFIG_FILE).is_file() else None
    if data is not None:
        return config, open_path(data, split)
    if config is None:
        raise UserError(f"{model} is a model without a run, which would know its data; give --data STORE.h5 or FOLDER")
    return config, open_split(config, split)


def words(text: str | None) -> list[str]:
    """What stands between the commas."""
    return [] if text is None else [word.strip() for word in text.split(",") if word.strip()]


def height_width(size: str) -> tuple[int, int]:
    """Of --size: 128, or 128x256."""
    parts = size.split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--size: expected a whole number of pixels, or height x width as 128x256; got {size!r}")
    return int(parts[0]), int(parts[-1])


def check_writable(file: Path) -> None:
    """UserError for a file that could not be written, before work that would be lost."""
    if file.is_dir():
        raise UserError(f"--out {file} is a folder; give the name of a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise UserError(f"--out: {file} cannot be written ({error.strerror}); give another path") from None


def numbers(option: str, text: str | None) -> list[int]:
    """Whole ones from 1 on, between commas."""
    try:
        found = [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option}: expected whole numbers with commas between, e.g. 5,10,25; got {text!r}") from None
    if any(number < 1 for number in found):
        raise UserError(f"{option}: expected numbers of at least 1, got {text!r}")
    return found
