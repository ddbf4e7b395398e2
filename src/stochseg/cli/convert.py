"""The command `stochseg convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.terminal import say, shell_command

EPILOG = (
    "The file is read without running code in it, and its Polyak average (average_model) becomes the model. Void is "
    "label 19 of ccdm-cityscapes-dino."
)


def convert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ccdm-lidc (9M) or ccdm-cityscapes-dino (30M, 256×512).")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Checkpoint as downloaded.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; it must not exist.")],
    encoder_weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help='Weights of DINO\'s ViT-S/8 if the checkpoint has none; or "download" (by timm).'
        ),
    ] = None,
) -> None:
    """Convert a checkpoint that the authors of CCDM published to a saved model."""
    from stochseg.models import convert_checkpoint

    convert_checkpoint(name, file, out, encoder_weights=encoder_weights)
    say(f"written to {out}. Next: {shell_command('predict', out, 'IMAGE')}")
