"""Folders written by `stochseg predict`, read back for a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import tifffile
import torch
from PIL import Image
from pydantic import ConfigDict, Field

from stochseg.analysis.image_samples import ImageSamples
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.questions import Question
from stochseg.config import Config
from stochseg.data.readers.nifti import Slicing
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import sha256
from stochseg.inference.result_folder import FORMAT, LESIONS, RESULT
from stochseg.inference.sources import read_stack
from stochseg.limits import check_memory
from stochseg.models import Calibration
from stochseg.models.io import read_json
from stochseg.plotting.pictures import FloatArray, intensities_to_rgb
from stochseg.plotting.planes import PLANES, marked_view
from stochseg.reports.image import ImageReport
from stochseg.reports.volume import Coupling, VolumeReport
from stochseg.types import DatasetInfo, Samples, Spacing

REMEDY = "predict this input again with --overwrite, or remove the folder"
SIDES = (("the patient's left", "the patient's right"), ("posterior", "anterior"), ("the feet", "the head"))
"""Sides of the body at the start and at the end of NIfTI's axes x, y, z."""
UNITS = {"mm2": "mm²", "mm3": "mm³", "pixels": "px²"}


# --- result.json -----------------------------------------------------------------------------------------


class Part(Config):
    """A part of result.json; keys that a report does not need are ignored."""

    model_config = ConfigDict(extra="ignore")


class InputFile(Part):
    """An input file and its checksum."""

    file: str
    sha256: str


class ClassSizes(Part):
    """A class and its size in every sample."""

    label: int = Field(ge=0)
    name: str
    color: str | None = None
    confidence: float | None = Field(None, ge=0, le=1)
    samples: tuple[float, ...] = Field(min_length=1)
    renamed_keys: ClassVar[dict[str, str]] = {"colour": "color"}


class Geometry(Part):
    """Size and place of the input."""

    slices: int = Field(ge=1)
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    spacing_mm: tuple[float, float, float] | None = None
    affine: tuple[tuple[float, float, float, float], ...] | None = Field(None, min_length=4, max_length=4)
    slice_axis: int | None = Field(None, ge=0, le=2)
    transposed: bool = False
    flipped: tuple[Literal[0, 1, 2], ...] = ()

    @property
    def slicing(self) -> Slicing:
        """How the volume was cut; older results have it in the order of its array."""
        return Slicing(2 if self.slice_axis is None else self.slice_axis, self.transposed, self.flipped)

    @property
    def orientation(self) -> str:
        """Sides of the body at the top and the left of the pictures, approximately for oblique volumes."""
        if self.affine is None:
            return ""
        _, rows, columns = self.slicing.axes
        down, across = (np.array(self.affine)[:3, i] * (-1 if i in self.flipped else 1) for i in (rows, columns))
        up, left = (SIDES[int(np.abs(way).argmax())][int(way[np.abs(way).argmax()] < 0)] for way in (down, across))
        return f"Up is {up}, left is {left}."

    @property
    def planes(self) -> tuple[str, ...]:
        """Names of the planes perpendicular to slices, rows and columns, approximately for oblique volumes."""
        if self.affine is None:
            return PLANES
        world = [int(np.abs(np.array(self.affine)[:3, axis]).argmax()) for axis in self.slicing.axes]
        return tuple(PLANES[2 - axis] for axis in world) if len(set(world)) == 3 else PLANES

    @property
    def last_slice(self) -> str:
        """Side of the body at the last slice."""
        axis = self.slicing.axis
        way = np.array(self.affine)[:3, axis] * (-1 if axis in self.flipped else 1)
        side = int(np.abs(way).argmax())
        return SIDES[side][int(way[side] > 0)].capitalize()


class LesionPart(Part):
    """The part of a scan around a lesion. start: its first voxel as slice, row and column."""

    start: tuple[int, int, int]


class LesionFacts(Part):
    """The lesion that a result is about."""

    part: LesionPart


class ModelFacts(Part):
    """The model that predicted."""

    name: str
    origin: str = ""


class Options(Part):
    """The options of `predict`."""

    seed: int = 0
    rater: str | None = None
    guidance: float | None = None


class Result(Part):
    """The content of result.json."""

    inputs: tuple[InputFile, ...] = Field(min_length=1)
    model: ModelFacts
    options: Options = Options()
    evaluations: int = 1
    notices: tuple[str, ...] = ()
    image: Geometry
    unit: str
    classes: tuple[ClassSizes, ...] = Field(min_length=2)
    confidence: float | None = Field(None, ge=0, le=1)
    weights: tuple[tuple[float, ...], ...] | None = Field(None, min_length=1)
    window: tuple[tuple[int, int], ...] | None = None
    coupling: Coupling = "independent"
    lesion: LesionFacts | None = None
    calibration: Calibration | None = None

    @property
    def usable_calibration(self) -> Calibration | None:
        """The calibration of the model, unless the input is a volume that a model of images segmented."""
        return None if self.image.slices > 1 and self.coupling != "joint" else self.calibration

    @property
    def info(self) -> DatasetInfo:
        """Names and colors of the classes."""
        names = tuple(c.name for c in self.classes)
        info = DatasetInfo(num_classes=len(names), image_channels=1, class_names=names)
        palette = tuple(c.color or default for c, default in zip(self.classes, info.colors, strict=True))
        return info.model_copy(update={"palette": palette})

    @property
    def num_samples(self) -> int:
        """Number of samples per image."""
        return len(self.classes[0].samples)

    @property
    def source(self) -> str:
        """The input file, or the folder of a series."""
        first = self.inputs[0].file
        return first if len(self.inputs) == 1 else str(Path(first).parent)

    @property
    def per_slice(self) -> bool:
        """Whether it is a volume whose slices were sampled independently."""
        return self.image.slices > 1 and self.coupling == "independent"

    @property
    def drawn_as(self) -> str | None:
        """The rater as whom the model drew, with the guidance if it was chosen; None: as any of them."""
        rater, guidance = self.options.rater, self.options.guidance
        return rater if rater is None or guidance in (None, 1) else f"{rater} (guidance {guidance:g})"

    @property
    def notes(self) -> tuple[str, ...]:
        """The notices as sentences, and as which rater the model drew."""
        hand = () if self.drawn_as is None else (f"drawn as {self.drawn_as} would draw",)
        return tuple(f"Note: {notice}." for notice in (*hand, *self.notices))

    def sample_weights(self) -> torch.Tensor:
        """Weights of the samples, "1 n"; they are those of every slice."""
        if self.weights is None:
            return torch.full((1, self.num_samples), 1 / self.num_samples)
        return torch.tensor(self.weights[0], dtype=torch.float32)[None]


def find_results(path: Path) -> list[Path]:
    """Find the folders with a result: this one, or those directly below it; of a scan, those of its lesions."""
    if (path / RESULT).is_file():
        return _lesions_of(path) or [path]
    below = sorted(file.parent for file in path.glob(f"*/{RESULT}") if not file.parent.name.startswith("."))
    return [folder for scan in below for folder in _lesions_of(scan) or [scan]]


def _lesions_of(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob(f"{LESIONS}/*/{RESULT}"))


def read_result(folder: Path) -> Result:
    """Read and check result.json of one input.

    Raises:
        UserError: if it is damaged, of another format, or of a volume whose slices weigh samples differently.
    """
    try:
        record = read_json(folder / RESULT)
        if record.get("format") != FORMAT:
            raise UserError(f"{folder / RESULT}: expected format {FORMAT!r}, got {record.get('format')!r}")
        result = Result.parse(record, where=str(folder / RESULT))
        if len(set(map(len, result.weights or ()))) > 1:
            raise UserError(f"{folder / RESULT}: weights of different numbers of samples")
        if result.calibration is not None:
            result.calibration.check_classes(len(result.classes), str(folder / RESULT))
            if result.calibration.sampling.n != result.num_samples:
                raise UserError(f"{folder / RESULT}: a calibration of another number of samples")
    except UserError as error:
        raise UserError(f"{error}; {REMEDY}") from None
    if result.weights is not None and not np.allclose(result.weights, result.weights[0], atol=1e-6):
        raise UserError(
            f"{folder}: samples of this volume have different weights in different slices, so that volumes have no "
            "weight; predict it with a model of equally weighted samples (mose without `weighted`)"
        )
    return result


# --- arrays ----------------------------------------------------------------------------------------------


def read_image(
    folder: Path, result: Result, spacing: Spacing | None = None, questions: Sequence[Question] = ()
) -> ImageReport | VolumeReport:
    """Read one input with its samples."""
    if result.image.slices > 1:
        return _read_volume_report(folder, result, questions)
    original = _read_original(result)
    labels, mean = (maps[:, 0] for maps in read_maps(folder, result))
    spacing = spacing if result.image.spacing_mm is None else result.image.spacing_mm[1:]
    picture, notes = _read_picture(folder, result, original)
    _check_sizes(folder, result, labels, mean, picture.shape[:2])
    samples = Samples(
        torch.from_numpy(labels.astype(np.int64))[None],
        torch.from_numpy(mean.astype(np.float32))[None],
        result.sample_weights(),
        result.options.seed,
        result.evaluations,
        window=result.window,
    )
    return ImageReport(
        folder.resolve().name,
        picture,
        samples,
        result.info,
        spacing,
        notes=(*notes, *result.notes),
        questions=questions,
        calibration=result.usable_calibration,
    )


def read_maps(folder: Path, result: Result) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the label maps of all samples, "n s h w", and the mean probabilities, "l s h w", of one input.

    Raises:
        UserError: if a file is damaged or missing.
    """
    image = result.image
    if image.spacing_mm is None:
        pages = {"samples": result.num_samples, "mean": len(result.classes)}
        labels, mean = (_read_tiff(folder / f"{name}.tif", count, image)[:, None] for name, count in pages.items())
    else:
        labels, mean = (np.moveaxis(_read_volume(folder, image, name), -1, 0) for name in ("samples", "mean"))
    return labels, mean


def _read_volume_report(folder: Path, result: Result, questions: Sequence[Question]) -> VolumeReport:
    image, original = result.image, _read_original(result)
    labels, mean = read_maps(folder, result)
    _check_sizes(folder, result, labels, mean, None if original is None else original.shape[:3])
    maps = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.uint8 if len(mean) <= 256 else np.int64))
    view = marked_view([maps], image.spacing_mm, image.planes)
    _, second, third = view.names
    notes = [f"{image.last_slice} is on top of the {second} and {third} planes."] if image.affine is not None else []
    if original is None:
        notes.append(f"{result.source} is missing or has changed, so the pictures show outlines only.")
        original = np.zeros((image.slices, image.height, image.width), np.float32)
    window, weights = result.window, result.sample_weights()[0].double()
    return VolumeReport(
        folder.resolve().name,
        intensities_to_rgb(original[view.window], 3),
        ImageSamples(maps[(slice(None), *view.window)], weights / weights.sum(), result.info),
        result.info,
        view.crop(mean).astype(np.float32),
        view,
        image.slices,
        result.coupling,
        image.spacing_mm,
        volumes=read_sizes(result),
        labeled=window if window is None or len(window) == 3 else ((0, image.slices), *window),
        notes=(*notes, *result.notes),
        questions=questions,
        calibration=result.usable_calibration,
    )


def _check_sizes(
    folder: Path, result: Result, labels: npt.NDArray[Any], mean: npt.NDArray[Any], picture: tuple[int, ...] | None
) -> None:
    """Raise a UserError unless samples "n *space", mean "l *space" and the size of the picture are those expected."""
    image = result.image
    size = (image.slices, image.height, image.width)[-(labels.ndim - 1) :]
    expected, got = (result.num_samples, len(result.classes), *size), (len(labels), len(mean), *labels.shape[1:])
    if got != expected or mean.shape[1:] != size or picture not in (None, size):
        raise UserError(
            f"{folder}: {RESULT} describes {expected} samples, classes and pixels per axis, but its files have {got}; "
            f"{REMEDY}"
        )


def read_sizes(result: Result) -> dict[int, Measurement]:
    """Volume, or area of a single slice, of each foreground class by its label, as `predict` measured it."""
    weights = result.sample_weights()[0].double()
    weights = weights / weights.sum()
    unit = UNITS.get(result.unit, result.unit)
    what = "volume" if result.image.slices > 1 else "area"
    foreground = (c for c in result.classes if c.label > 0)
    return {c.label: Measurement(f"{what} of {c.name}", np.array(c.samples), weights.numpy(), unit) for c in foreground}


def _read_tiff(file: Path, pages: int, image: Geometry) -> npt.NDArray[Any]:
    """Read a TIFF as "pages h w". Of more pages than expected one is read: a damaged file may have no end."""
    try:
        with tifffile.TiffFile(file) as tiff:
            found = list(islice(tiff.pages, pages + 1))
            if {page.shape for page in found} != {(image.height, image.width)}:
                raise ValueError(f"its pages have {found[0].shape} pixels, expected {image.height}×{image.width}")
            check_memory(sum(page.nbytes for page in found), str(file))
            return np.stack([page.asarray() for page in found])
    except Exception as error:  # decoders raise anything for a damaged file
        raise UserError(f"{file} cannot be read ({str(error) or type(error).__name__}); {REMEDY}") from None


def _read_volume(folder: Path, image: Geometry, name: str) -> npt.NDArray[Any]:
    """Read a NIfTI file as slices, "s h w …"."""
    file = folder / f"{name}.nii.gz"
    nibabel = require("nibabel", "medical", str(file))
    try:
        return image.slicing.cut(np.asarray(nibabel.load(file).dataobj))
    except Exception as error:  # decoders raise anything for a damaged file
        raise UserError(f"{file} cannot be read ({str(error) or type(error).__name__}); {REMEDY}") from None


def _read_original(result: Result) -> npt.NDArray[Any] | None:
    """Read the intensities that were segmented, "s h w" or "s h w c"; None if the files changed or are missing."""
    files = [Path(one.file) for one in result.inputs]
    try:
        if any(sha256(file) != one.sha256 for file, one in zip(files, result.inputs, strict=True)):
            return None
        return _part(read_stack(files, result.image.slicing).values, result)
    except (OSError, UserError):
        return None


def _part(values: npt.NDArray[Any], result: Result) -> npt.NDArray[Any]:
    """The part of a scan around a lesion; without one, all of it."""
    if result.lesion is None:
        return values
    s, h, w = result.lesion.part.start
    image = result.image
    return values[s : s + image.slices, h : h + image.height, w : w + image.width]


def _read_picture(
    folder: Path, result: Result, original: npt.NDArray[Any] | None
) -> tuple[FloatArray, tuple[str, ...]]:
    """The image "h w 3" in 0..1, and a note if only the overlay of `predict` is left."""
    if original is not None:
        return intensities_to_rgb(original[0]), ()
    try:
        with Image.open(folder / "overlay.png") as picture:
            size = (result.image.width, result.image.height)
            overlay = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.NEAREST)) / 255
    except OSError as error:
        raise UserError(f"{folder / 'overlay.png'} cannot be read ({error}); {REMEDY}") from None
    return overlay, (f"{result.source} is missing or has changed, so the outlines are drawn on the overlay.",)
