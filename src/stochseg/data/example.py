"""An example folder of synthetic images and label maps: to try commands, and as a template for your own data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from stochseg.data.phantom import Phantoms
from stochseg.errors import UserError
from stochseg.files import replaced_folder

SLICES_PER_PATIENT = 4
RATERS = ("ana", "ben", "chi")


def write_example_folder(
    out: Path,
    *,
    count: int = 400,
    size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a folder with images/P000-0.png … and labels/RATER/…, without dataset.yaml.

    There are three raters, of whom one skips every fifth image.

    Args:
        out: The folder to create; it must not exist.
        count: Number of images.
        size: Height and width.
        progress: Called with the images done so far and their total.

    Returns:
        The folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=2, size=16)
        ...     sorted(file.relative_to(root).as_posix() for file in root.rglob("*-1.png"))
        ['images/P000-1.png', 'labels/ana/P000-1.png', 'labels/ben/P000-1.png', 'labels/chi/P000-1.png']
    """
    if out.exists():
        raise UserError(f"{out} exists; choose the name of a new folder")
    phantoms = Phantoms("train", size=size, count=count, raters=len(RATERS))
    with replaced_folder(out, ours=lambda _: False, kind="new") as scratch:
        for folder in ("images", *(f"labels/{rater}" for rater in RATERS)):
            (scratch / folder).mkdir(parents=True)
        for i in range(count):
            name = f"P{i // SLICES_PER_PATIENT:03d}-{i % SLICES_PER_PATIENT}.png"
            Image.fromarray(phantoms.raw(i)).save(scratch / "images" / name)
            for rater, labels in zip(RATERS, phantoms[i].raters.numpy(), strict=True):
                if not (rater == "chi" and i % 5 == 0):
                    Image.fromarray((labels * 255).astype(np.uint8)).save(scratch / "labels" / rater / name)
            progress(i + 1, count)
    return out
