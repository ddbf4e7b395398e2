"""result.json of a prediction, read back and checked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field

from stochseg.config import Config
from stochseg.data.readers.nifti import Slicing
from stochseg.errors import UserError
from stochseg.inference.result_folder import FORMAT, LESIONS, RESULT
from stochseg.models import Calibration
from stochseg.models.io import read_json
from stochseg.plotting.planes import PLANES
from stochseg.reports.volume import Coupling
from stochseg.types import DatasetInfo

REMEDY = "predict this input again with --overwrite, or remove the folder"
SIDES = (("the patient's left", "the patient's right"), ("posterior", "anterior"), ("the feet", "the head"))
"""Sides of the body at the start and at the end of NIfTI's axes x, y, z."""


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
