"""A folder of images and label maps as a user would have it, made of phantoms: to try things, and to imitate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from stochseg.data.phantom import Phantoms
from stochseg.errors import UserError
from stochseg.files import replaced_folder

SLICES_A_PATIENT = 4


def write_example_folder(
    out: Path, *, count: int = 400, size: int = 64, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Path:
    """images/P000-0.png … and labels/RATER/…, three raters, of whom one skips every fifth image; no dataset.yaml."""
    if out.exists():
        raise UserError(f"{out} exists; give the name of a new folder")
    phantoms = Phantoms("train", size=size, count=count, raters=3, seed=seed)
    raters = ("ana", "ben", "chi")
    with replaced_folder(out, ours=lambda _: False, kind="new") as scratch:
        for folder in ("images", *(f"labels/{rater}" for rater in raters)):
            (scratch / folder).mkdir(parents=True)
        for i in range(count):
            name = f"P{i // SLICES_A_PATIENT:03d}-{i % SLICES_A_PATIENT}.png"
            Image.fromarray(phantoms.raw(i)).save(scratch / "images" / name)
            for rater, labels in zip(raters, phantoms[i].raters.numpy(), strict=True):
                if not (rater == "chi" and i % 5 == 0):
                    Image.fromarray((labels * 255).astype(np.uint8)).save(scratch / "labels" / rater / name)
            if progress is not None:
                progress(i + 1, count)
    return out
