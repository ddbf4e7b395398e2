"""The command `stochseg train`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import Device, RecipeData
from stochseg.cli.terminal import messages, note, say, shell_command
from stochseg.errors import UserError

EPILOG = (
    "Recipes: phantom-tiny, phantom-3d (synthetic images and volumes, minutes on two cores); small (your own data); "
    "lidc-fast-s, lidc-3d (slices and nodules of LIDC, 1.5 hours on two cores); lidc-fast-m, lidc-fast-l (LIDC, "
    "larger, for a GPU); camvid-fast, cityscapes-fast (street scenes, with pretrained features); lidc-9m, lidc-41m, "
    "cityscapes-30m (from the paper; they need their data and a GPU). paper:DATA/ROW: any row of its tables, e.g. "
    "paper:cityscapes-256x512/ccdm-30m-dino. Every model can also be trained by its name. Several GPUs: torchrun "
    "--nproc-per-node 4 -m stochseg train …"
)


def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="Name of a recipe or model, or a YAML file such as RUN/train.yaml."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Settings to change, e.g. steps=2000 lr=5e-4 model.options.draws=2.", metavar="KEY=VALUE"),
    ] = None,
    data: RecipeData = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Run folder. Default: runs/ followed by the name.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint of the run.")] = False,
    device: Device = "auto",
) -> None:
    """Train a model.

    The run folder gets best/ and last/ checkpoints, TensorBoard logs and pictures of samples."""
    words = [recipe, *(overrides or [])]
    _check_no_options(words)
    from stochseg.experiments.recipes import recipe as find_recipe
    from stochseg.training import train as run

    config = find_recipe(recipe, overrides or [], data)
    name = re.sub("[:/]", "-", recipe) if recipe.startswith("paper:") else Path(recipe).stem
    out = out or Path("runs") / name
    try:
        run(config, out, resume=resume, device=device, console=messages)
    except KeyboardInterrupt:
        source = [] if data is None else ["--data", data]
        again = shell_command("train", *words, *source, "--out", out, "--resume")
        note(f"\nstopped; resume with: {again}")
        raise
    if os.environ.get("RANK", "0") == "0":
        say(f"done: {out}. Next: {shell_command('evaluate', out)}")


def _check_no_options(words: Sequence[str]) -> None:
    """Raise a UserError for an unknown option, with the setting that was probably meant."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-"):
            key, _, value = word.lstrip("-").partition("=")
            given = value or ("" if following.startswith("-") or "=" in following else following)
            raise UserError(
                f"no such option: {word}; settings of the training are written without dashes: "
                f"{key.replace('-', '_')}={given or 'VALUE'}. See stochseg train --help"
            )
