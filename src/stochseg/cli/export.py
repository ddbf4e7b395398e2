"""The command `stochseg export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import ModelPath, parse_size
from stochseg.cli.terminal import say


def export(
    model: ModelPath,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of the images: 128, or 128x256.")] = "128",
) -> None:
    """Export a model to ONNX for use outside Python.

    Writes its networks as ONNX files, and export.json, which explains how to sample."""
    from stochseg.inference import export as write
    from stochseg.models import load

    folder = write(load(model), out, parse_size(size))
    say(f"written to {folder}; start with {folder}/export.json")
