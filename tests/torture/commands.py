"""What is fuzzed of the program: command lines over small valid inputs, run in this process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image
from typer.main import get_command

from stochseg.cli import app as program
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.models import create, save
from tests.support.images import nifti_bytes
from tests.torture.mutations import WORDS, Target
from tests.torture.saved import GRAY, TINY

LIMITS = ("--budget", "--repeats")
"""Options without which a command works for minutes, as it should."""
KEPT = ("--out", *LIMITS)
"""Options whose values stay."""


def commands(scratch: Path, store: Path) -> Target:
    """Write the inputs below a folder and return the target. store: a packed store."""
    inputs = scratch / "inputs"
    inputs.mkdir()
    Image.fromarray(GRAY).save(inputs / "in.png")
    shutil.copy(store, inputs / "seed.h5")
    (inputs / "scan.nii").write_bytes(nifti_bytes(np.zeros((9, 8, 3), np.int16), (1, 1, 2)))
    (inputs / "points.csv").write_text("id,x,y,z\na,2,3,1\n")
    save(create("ccdm", 2, 1, **TINY), inputs / "model")
    predict(create("unet-ce", 2, 1, base=4, multipliers=[1]), inputs / "in.png", inputs / "done", PredictOptions(n=2))
    init_folder(write_example_folder(inputs / "mine", count=12, size=8))
    lines = (
        "predict model in.png --out out -n 2 --evaluations 2 --seed 3 --overwrite",
        "predict model in.png --out out --tile 64 --overlap 16 --sampler ancestral",
        "predict model in.png mine --out out --part 1/2 -n 1 --evaluations 1",
        "predict model scan.nii --out out -n 1 --slices shared --axis axial --tile-slices 8 --allow-unusual-input",
        "predict model scan.nii --out out --at 3,4,1 --box 1,1,0,4,4,2",
        "predict model scan.nii --out out --points points.csv --mm --allow-unusual-input",
        "growth done/in done/in --days 30",
        "gather mine/labels --out out --kind labels -n 2 --coherence 3 --classes a,b",
        "report done --out page.html --limit 1 --spacing 0.7,0.5 --ask 'longest diameter > 6 parsecs'",
        "evaluate model --data mine --split train --part 1/2 --out out -n 2 --limit 1 --device cpu",
        "data check seed.h5",
        "data check mine",
        "data raters mine --out page.html --limit 0",
        "data init mine threshold=128",
        "data import folder mine new.h5",
        "data export nnunet mine Dataset001_a",
        "data show seed.h5 --out sheet.png --count 0 --split val",
        "data example example --count 1 --size 8",
        "train phantom-tiny steps=0 batch_size=2 --device cpu",
        "export model bundle --to monai",
        "convert in.png converted",
        "bench model@2 --size 16 -n 1 --repeats 1",
        "compare ccdm unet-ce --data mine --budget 0 --set batch_size=2",
    )
    seeds = [json.dumps(shlex.split(line)).encode() for line in lines]
    return Target(seeds, partial(_command, get_command(program.app), inputs), _mutate_words)


def _mutate_words(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change words of a command: no word leads out of the current folder, and what limits its work stays.

    Its name and the folders that it writes stay, too.
    """
    words: list[str] = json.loads(content)
    strange = [word.replace("\x00", "") for word in WORDS if not word.startswith(("/", ".."))]
    for _ in range(rng.choice((1, 2))):
        i = rng.randrange(1, len(words))
        if words[i - 1] not in KEPT and not words[i].startswith(("steps", *LIMITS)):
            words[i] = rng.choice((*strange, *json.loads(rng.choice(others))[1:]))
    return json.dumps(words).encode()


def _command(app: Callable[[], object], inputs: Path, content: bytes) -> None:
    """Run a command in a copy of the inputs, so that nothing depends on the commands before.

    app: the program with its parser, which takes longer to build than most commands take.
    """
    words = json.loads(content)
    if any("\x00" in word for word in words):  # no shell can pass it
        return
    before, sys.argv = sys.argv, ["stochseg", *words]
    here = Path.cwd()
    work = Path(shutil.copytree(inputs, Path(tempfile.mkdtemp(dir=inputs.parent)) / "work"))
    os.chdir(work)
    try:
        with (
            open(os.devnull, "w") as sink,
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
            patch.object(program, "app", app),
        ):
            program.main()
    except SystemExit as end:
        if end.code == 2:
            raise UserError("exit code 2") from end
        if end.code not in (0, 1):
            raise RuntimeError(f"exit code {end.code}") from end
    finally:
        sys.argv = before
        os.chdir(here)
        shutil.rmtree(work.parent)
