"""The command `stochseg push`."""

from __future__ import annotations

from typing import Annotated

import typer

from stochseg.cli.options import ModelPath
from stochseg.cli.terminal import say

EPILOG = "It needs the extra hub and a token: hf auth login, or the variable HF_TOKEN. Load it again as hf:OWNER/NAME."


def push(
    model: ModelPath,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository; it is created if necessary.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
    license: Annotated[
        str | None, typer.Option(metavar="NAME", help="License of the weights for the card, such as mit.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Upload weights as float16, half the size.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub: weights, config, checksums, and a card if there is none yet."""
    from stochseg.models import push as upload

    say(f"uploaded: {upload(model, name, private=private, license=license, half=half)}")
