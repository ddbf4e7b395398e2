"""Examples to try: phantoms with known raters, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from stochseg.data import Phantoms
from stochseg.data.phantom.dataset import FIELD_MM, PhantomVolumes
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.sources import Source, read_stack
from stochseg.studio.catalog import EXAMPLES, MAX_NUMBER
from stochseg.studio.maps import Array
from stochseg.studio.settings import Limits
from stochseg.studio.store import Json
from stochseg.studio.uploads import write_input

GROWTH = 1.3
"""Factor of all lengths between a phantom slice and its later scan."""


def make_example(name: str, number: int, folder: Path, limits: Limits) -> Json:
    """Make an example as an input; number: which of its images."""
    (folder / "files").mkdir()
    file, raters = MAKERS[name](folder / "files", number)
    stack = read_stack([file])
    if stack.values.shape[:3] != raters.shape[1:]:
        raise UserError(f"example {name}: its raters have another size")
    names = [f"rater {i + 1}" for i in range(len(raters))]
    mm = FIELD_MM / stack.values.shape[2]
    title = f"{EXAMPLES[name].title} {number}"
    return write_input(folder, title, Source(name, (file,)), stack, (mm, mm), (raters, names), [], limits)


def _slice(folder: Path, number: int) -> tuple[Path, Array]:
    data = Phantoms("test", size=128, count=MAX_NUMBER + 1)
    Image.fromarray(data.raw(number)).save(folder / "00000.png")
    return folder / "00000.png", data[number].raters.numpy().astype(np.uint8)[:, None]


def _later(folder: Path, number: int) -> tuple[Path, Array]:
    """The slice of `_slice` after everything in it has grown, around the lesion."""
    data = Phantoms("test", size=128, count=MAX_NUMBER + 1)
    raters = data[number].raters.numpy().astype(np.uint8)
    marked = np.argwhere(raters.any(0))
    center = marked.mean(0) + 0.5 if len(marked) else np.full(2, 64.0)
    side = 128 / GROWTH
    top, left = np.clip(center - side / 2, 0, 128 - side).tolist()
    box = (left, top, left + side, top + side)
    Image.fromarray(data.raw(number)).resize((128, 128), Image.Resampling.BICUBIC, box).save(folder / "00000.png")
    grown = [np.asarray(Image.fromarray(each).resize((128, 128), Image.Resampling.NEAREST, box)) for each in raters]
    return folder / "00000.png", np.stack(grown)[:, None]


def _volume(folder: Path, number: int) -> tuple[Path, Array]:
    data = PhantomVolumes("test", size=128, slices=24, count=MAX_NUMBER + 1)
    raters = data[number].raters.numpy().astype(np.uint8)
    return write_volume(folder, data.raw(number), data[number].spacing), raters


def _ct(folder: Path, number: int) -> tuple[Path, Array]:
    """A scan in Hounsfield units, larger than what a model sees of it; mirrored around the phantom."""
    data = PhantomVolumes("test", size=112, slices=18, count=MAX_NUMBER + 1, seed=1)
    around = ((6, 6), (24, 24), (24, 24))
    gray = np.pad(data.raw(number).astype(np.float32), around, mode="reflect")
    raters = np.pad(data[number].raters.numpy().astype(np.uint8), ((0, 0), *around))
    return write_volume(folder, (gray * (1200 / 255) - 1000).round().astype(np.int16), data[number].spacing), raters


def write_volume(folder: Path, values: Array, spacing: tuple[float, ...] | None) -> Path:
    """Write a volume "d h w" as axial slices of NIfTI, so that reading it gives the same order."""
    assert spacing is not None
    nibabel = require("nibabel", "medical", "volumes")
    slices, rows, columns = spacing
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0), np.diag([-columns, -rows, slices, 1.0]))
    image.to_filename(folder / "00000.nii")
    return folder / "00000.nii"


MAKERS: dict[str, Callable[[Path, int], tuple[Path, Array]]] = {
    "phantom": _slice,
    "phantom-later": _later,
    "phantom-3d": _volume,
    "phantom-ct": _ct,
}
"""Functions that write the file of an example into a folder, and return it with the raters "k s h w"."""
