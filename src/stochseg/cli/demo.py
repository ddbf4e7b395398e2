"""The command `stochseg demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.terminal import console


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Run folder. An existing run is resumed.")] = Path(
        "runs/demo"
    ),
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="M", help="Stop training after M minutes. Default: train all steps."),
    ] = None,
) -> None:
    """Train a small model on synthetic images and show its samples: minutes on two cores, no download."""
    from stochseg.experiments.demo import run_demo

    run_demo(out, console, minutes=minutes)
