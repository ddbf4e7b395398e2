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
    to: Annotated[str, typer.Option(metavar="NAME", help="onnx, or monai: a bundle, for any size.")] = "onnx",
) -> None:
    """Export a model to ONNX for use outside Python, or as a bundle of MONAI.

    ONNX: its networks as files, and export.json, which explains how to sample."""
    from stochseg.errors import unknown_name
    from stochseg.inference import export as write
    from stochseg.inference.monai import export_bundle
    from stochseg.models import load

    if to not in ("onnx", "monai"):
        raise unknown_name("kind of export", to, ("onnx", "monai"))
    if to == "monai":
        say(f"written to {export_bundle(load(model), out)}; it runs with: python -m monai.bundle run")
        return
    folder = write(load(model), out, parse_size(size))
    say(f"written to {folder}; start with {folder}/export.json")
