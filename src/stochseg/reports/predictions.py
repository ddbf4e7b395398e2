"""A page about what `stochseg predict` wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from PIL import Image
from pydantic import ConfigDict, Field

from stochseg._version import __version__
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.questions import Question
from stochseg.config import Config
from stochseg.data import spread
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import sha256
from stochseg.inference.sources import FORMAT, RESULT, read_stack
from stochseg.inference.stacks import Lattice
from stochseg.models.io import read_json
from stochseg.plotting.pictures import intensities_to_rgb
from stochseg.reports.image import ImageReport, number, spread_text
from stochseg.reports.page import Section, Table, write_page
from stochseg.types import DEFAULT_PALETTE, DatasetInfo, Samples

AGAIN = "predict this input again with --overwrite, or remove the folder"
SIDES = (("the patient's left", "the patient's right"), ("posterior", "anterior"), ("the feet", "the head"))
"""Where NIfTI's axes x, y, z come from and lead to."""
UNITS = {"mm2": "mm²", "mm3": "mm³", "pixels": "px²"}


class Part(Config):
    """A part of result.json; what a report does not use is passed over."""

    model_config = ConfigDict(extra="ignore")


class InputFile(Part):
    file: str
    sha256: str


class ClassSizes(Part):
    label: int = Field(ge=0)
    name: str
    color: str | None = None
    samples: tuple[float, ...] = Field(min_length=1)


class Geometry(Part):
    slices: int = Field(ge=1)
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    spacing_mm: tuple[float, float, float] | None = None
    affine: tuple[tuple[float, float, float, float], ...] | None = Field(None, min_length=4, max_length=4)
    slice_axis: int | None = Field(None, ge=0, le=2)

    @property
    def facing(self) -> str:
        """Which sides of the body are at the top and the left of the pictures, roughly if it lies oblique."""
        if self.affine is None:
            return ""
        axis = 2 if self.slice_axis is None else self.slice_axis
        across, down = (np.array(self.affine)[:3, i] for i in range(3) if i != axis)
        up, left = (SIDES[int(np.abs(way).argmax())][int(way[np.abs(way).argmax()] < 0)] for way in (down, across))
        return f"Up is {up}, left is {left}."


class ModelFacts(Part):
    name: str
    origin: str = ""
    data: str = ""


class Result(Part):
    """result.json."""

    inputs: tuple[InputFile, ...] = Field(min_length=1)
    model: ModelFacts
    options: dict[str, Any] = Field({})
    evaluations: int = 1
    notices: tuple[str, ...] = ()
    image: Geometry
    unit: str
    classes: tuple[ClassSizes, ...] = Field(min_length=2)
    weights: tuple[tuple[float, ...], ...] | None = None
    overlay_slice: int = 0

    @property
    def info(self) -> DatasetInfo:
        colors = [c.color or DEFAULT_PALETTE[i % len(DEFAULT_PALETTE)] for i, c in enumerate(self.classes)]
        return DatasetInfo(
            name=self.model.data or "unnamed",
            num_classes=len(self.classes),
            image_channels=1,
            class_names=tuple(c.name for c in self.classes),
            palette=tuple(colors),
        )

    @property
    def samples(self) -> int:
        return len(self.classes[0].samples)

    @property
    def source(self) -> str:
        """The file, or the folder of a series."""
        first = self.inputs[0].file
        return first if len(self.inputs) == 1 else str(Path(first).parent)


# --- reading ---------------------------------------------------------------------------------------------


def is_predictions(path: Path) -> bool:
    """Whether there is a result in this folder, or in folders below it."""
    return bool(_folders(path))


def _folders(path: Path) -> list[Path]:
    if (path / RESULT).is_file():
        return [path]
    return sorted(file.parent for file in path.glob(f"*/{RESULT}") if not file.parent.name.startswith("."))


def read_result(folder: Path) -> Result:
    """result.json of one input, checked."""
    try:
        record = read_json(folder / RESULT)
        if record.get("format") != FORMAT:
            raise UserError(f"{folder / RESULT}: expected format {FORMAT!r}, got {record.get('format')!r}")
        result = Result.parse(record, where=str(folder / RESULT))
    except UserError as error:
        raise UserError(f"{error}; {AGAIN}") from None
    if result.weights is not None and not np.allclose(result.weights, result.weights[0], atol=1e-6):
        raise UserError(
            f"{folder}: a sample of this volume does not weigh the same in every slice, so that its volume has no "
            "weight; predict it with a model whose samples weigh the same (mose without `weighted`)"
        )
    return result


def read_image(
    folder: Path, result: Result, spacing: tuple[float, float] | None = None, questions: Sequence[Question] = ()
) -> ImageReport:
    """Everything about one input, of a volume about one slice: the one on which the samples disagree most."""
    image, shown, most, original = result.image, 0, False, _original(result)
    if image.spacing_mm is None:
        labels, mean = (_pages(folder / f"{name}.tif", image) for name in ("samples", "mean"))
    else:
        disagreement = _volume(folder, image, "entropy", slice(None)).reshape(image.slices, -1).sum(1)
        most = original is not None and bool(disagreement.any())
        shown = int(disagreement.argmax()) if most else result.overlay_slice
        place = slice(shown, shown + 1)
        labels, mean = (np.moveaxis(_volume(folder, image, name, place)[0], -1, 0) for name in ("samples", "mean"))
        spacing = image.spacing_mm[1:]
    picture, note = _picture(folder, result, original, shown)
    where = f"slice {shown + 1} of {image.slices}" if image.slices > 1 else ""
    if where:
        why = "on which the samples disagree most" if most else "the one with most foreground"
        note = (f"Shown is {where}, {why}.", *note)
    expected = (result.samples, len(result.classes), image.height, image.width)
    got = (len(labels), len(mean), *labels.shape[1:])
    if got != expected or mean.shape[1:] != labels.shape[1:] or picture.shape[:2] != labels.shape[1:]:
        raise UserError(
            f"{folder}: {RESULT} tells of {expected} samples, classes, rows and columns, the files beside it of {got}; "
            f"{AGAIN}"
        )
    weights = torch.full((1, result.samples), 1 / result.samples)
    if result.weights is not None:
        weights = torch.tensor(result.weights[shown], dtype=torch.float32)[None]
    samples = Samples(
        torch.from_numpy(labels.astype(np.int64))[None],
        torch.from_numpy(mean.astype(np.float32))[None],
        weights,
        int(result.options.get("seed", 0)),
        result.evaluations,
    )
    sizes = {}
    if image.slices > 1:
        share = np.asarray(weights[0].double() / weights.double().sum())
        unit = UNITS.get(result.unit, result.unit)
        sizes = {
            c.label: Measurement(f"volume of {c.name}", np.array(c.samples), share, unit)
            for c in result.classes
            if c.label > 0
        }
    return ImageReport(
        folder.resolve().name,
        picture,
        samples,
        result.info,
        spacing,
        volume=sizes,
        slices=lambda: np.moveaxis(_volume(folder, image, "samples", slice(None)), -1, 1),
        where=where,
        notes=(*note, *(f"Note: {notice}." for notice in result.notices)),
        questions=questions,
    )


def _pages(file: Path, image: Geometry) -> np.ndarray:
    """A TIFF as "pages h w"."""
    try:
        return np.asarray(tifffile.imread(file)).reshape(-1, image.height, image.width)
    except (OSError, ValueError, tifffile.TiffFileError) as error:
        raise UserError(f"{file} cannot be read ({error}); {AGAIN}") from None


def _volume(folder: Path, image: Geometry, name: str, which: slice) -> np.ndarray:
    """Slices of a NIfTI file, "s h w …". Only what is asked for is read into memory."""
    file = folder / f"{name}.nii.gz"
    nibabel = require("nibabel", "medical", str(file))
    lattice = Lattice(np.eye(4), 2 if image.slice_axis is None else image.slice_axis)
    place = tuple(which if i == lattice.axis else slice(None) for i in range(3))
    try:
        return lattice.stacked(np.asarray(nibabel.load(file).dataobj[place]))
    except Exception as error:  # a damaged file can fail in any way, anywhere in a decoder
        raise UserError(f"{file} cannot be read ({str(error) or type(error).__name__}); {AGAIN}") from None


def _original(result: Result) -> np.ndarray | None:
    """The intensities that were segmented, "s h w" or "s h w c", if the files are still what they were."""
    files = [Path(one.file) for one in result.inputs]
    try:
        if any(sha256(file) != one.sha256 for file, one in zip(files, result.inputs, strict=True)):
            return None
        return read_stack(files, result.image.slice_axis).values
    except (OSError, UserError):
        return None


def _picture(folder: Path, result: Result, values: np.ndarray | None, shown: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The image "h w 3" in [0, 1], and a note if it is not the image itself."""
    if values is not None:
        return intensities_to_rgb(values[shown]), ()
    try:
        with Image.open(folder / "overlay.png") as picture:
            size = (result.image.width, result.image.height)
            overlay = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.NEAREST)) / 255
    except OSError as error:
        raise UserError(f"{folder / 'overlay.png'} cannot be read ({error}); {AGAIN}") from None
    note = f"{result.source} is not there any more or has changed, so the lines are drawn on the overlay."
    return overlay, (note,)


# --- the page --------------------------------------------------------------------------------------------


def report_predictions(
    path: Path,
    out: Path,
    *,
    limit: int = 100,
    spacing: tuple[float, float] | None = None,
    questions: Sequence[Question] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Write a page about a folder of predictions, or about one of them; returns the answers to the questions.

    limit: no more inputs than this, evenly spread; spacing: millimeters a pixel (row, column) of pictures, which do
    not state it; questions: what to answer for every input.
    """
    folders = _folders(path)
    if not folders:
        raise UserError(
            f"{path}: expected a folder that `stochseg predict` wrote, with {RESULT} in it or below it; there is none"
        )
    results = [read_result(folder) for folder in folders]  # a broken one is told before the work begins
    chosen = spread(len(folders), limit)
    rows, answers, sections = [], [], []
    for done, i in enumerate(chosen, start=1):
        image = read_image(folders[i], results[i], spacing, questions)
        sections.append(image.section(text=_facts(results[i]), anchor=f"image-{done}"))
        rows.append(_contents_row(image))  # of the image itself nothing is kept: samples may be large
        answers += [f"{image.name}: {text}" for text in image.said]
        if progress is not None:
            progress(done, len(chosen))
    left = f" {len(chosen)} of {len(folders)}, evenly spread, are on this page." if len(chosen) < len(folders) else ""
    models = sorted({r.model.origin or r.model.name for r in results})
    counts = sorted({r.samples for r in results})
    write_page(
        out,
        f"Predictions of {', '.join(models)}",
        f"{len(folders)} input{'s' * (len(folders) > 1)}, {' or '.join(map(str, counts))} samples each.{left} A sample "
        "is one complete, plausible segmentation; together the samples say what is certain and what is not.",
        [_contents(rows, questions, any(results[i].image.slices > 1 for i in chosen)), *sections],
        f"Written by stochseg {__version__} from {path}. Research software: not a medical device.",
    )
    return answers


def _facts(result: Result) -> str:
    image = result.image
    slices = f"{image.slices} slices of " if image.slices > 1 else ""
    mm = "" if image.spacing_mm is None else f", voxels of {' × '.join(number(v) for v in image.spacing_mm)} mm"
    mm += " (slice, row, column)" if mm else ""
    return f"{result.source}: {slices}{image.height} × {image.width} pixels{mm}. {image.facing}".rstrip()


def _contents_row(image: ImageReport) -> list[str]:
    first = image.readings[0]
    low, high = first.interval
    row = [image.name, str(len(image.readings)), f"{first.name} {first.probability:.0%} ({low:.0%} – {high:.0%})"]
    return [*row, f"{image.marked:.0%}", spread_text(image.size), *(str(answer) for answer in image.answers)]


def _contents(rows: list[list[str]], questions: Sequence[Question], volumes: bool) -> Section:
    head = ["input", "readings", "most likely reading", "anything marked", "size of all foreground, mean (90%)"]
    of_volumes = " Of a volume, the readings are of the slice shown, all else is of the whole." if volumes else ""
    return Section(
        "Inputs",
        "Readings: how many distinct answers the samples amount to. Anything marked: the share of the samples that "
        "find anything at all. In brackets behind a probability: the range in which it would settle (95%) with more "
        "samples." + of_volumes,
        table=Table([*head, *(f"P({q})" for q in questions)], rows, [f"image-{i + 1}" for i in range(len(rows))]),
    )
