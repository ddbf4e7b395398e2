"""Calibration of a model on held-out cases: scaling of probabilities, offsets of intervals, margins of outlines.

It is stored with the model as JSON and read like a config. Its offsets hold for samples drawn with the same options,
of cases that are exchangeable with those it was fitted on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from stochseg.config import Config
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.limits import MAX_CLASSES
from stochseg.metrics import scale_probabilities
from stochseg.models.sampling import SamplingOptions

CALIBRATION = "calibration.json"
"""Name of the file in the folder of a model."""
MAX_BYTES = 10**7
MAX_ENTRIES = 100_000
COMPARED = ("n", "evaluations", "sampler", "grid", "noise", "rater", "guidance")
"""Options of sampling on which the spread of samples depends; the seed is not one of them."""

Label = Annotated[int, Field(ge=0, lt=MAX_CLASSES)]
Probability = Annotated[float, Field(ge=0, le=1)]
Confidence = Annotated[float, Field(gt=0, lt=1)]


class Scaling(Config):
    """Scaling of the mean probabilities, see `stochseg.metrics.scale_probabilities`, with errors on other patients."""

    kind: Literal["temperature", "vector"]
    slope: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=2, max_length=MAX_CLASSES)
    bias: tuple[float, ...] = Field(min_length=2, max_length=MAX_CLASSES)
    ece_before: Probability = Field(description="calibration error of the foreground of patients not fitted on")
    ece_after: Probability = Field(description="the same after scaling")

    @model_validator(mode="after")
    def _check_lengths(self) -> Scaling:
        if len(self.slope) != len(self.bias):
            raise ValueError(f"expected one slope and one bias per class, got {len(self.slope)} and {len(self.bias)}")
        return self


class IntervalOffset(Config):
    """Offset of the intervals of one measurement, see `stochseg.analysis.conformal_interval`."""

    measure: str = Field(max_length=200, description="name of the measure")
    label: Label | None = Field(description="the class; null: all foreground")
    confidence: Confidence
    offset: float | None = Field(description="null: no finite interval suffices")
    covered_before: Probability = Field(description="raters of patients not fitted on, in the intervals of the samples")
    covered: Probability = Field(description="the same in the calibrated intervals")
    width_ratio: float | None = Field(ge=0, description="mean width of the intervals after and before")


class MarginOffset(Config):
    """Depth of the margin around the outline of one class, see `stochseg.analysis.margin_map`."""

    label: Label
    confidence: Confidence
    offset: float | None = Field(ge=0, description="null: no finite margin suffices")
    covered: Probability = Field(description="outlines of raters of patients not fitted on, inside the margin")


class Calibration(Config):
    """What `stochseg calibrate` fitted, and on what.

    >>> facts = {"data": "lidc", "data_sha256": "0" * 64, "split": "val", "patients": 40, "cases": 90, "date": "2025"}
    >>> calibration = Calibration(**facts, sampling=SamplingOptions(n=16, evaluations=10), evaluations=10)
    >>> calibration.difference(SamplingOptions(n=32, evaluations=10))
    'n is 32, the calibration has 16'
    """

    format: Literal["stochseg-calibration"] = "stochseg-calibration"
    version: Literal[1] = 1
    data: str = Field(max_length=1000, description="name of the data")
    data_sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of ids, images and raters")
    split: str = Field(max_length=100)
    patients: int = Field(ge=1, description="groups: the exchangeable units")
    cases: int = Field(ge=1)
    date: str = Field(max_length=40)
    sampling: SamplingOptions = Field(description="options, with the defaults of the model")
    evaluations: int = Field(ge=1, description="network evaluations per sample that were made")
    scaling: Scaling | None = None
    intervals: tuple[IntervalOffset, ...] = Field((), max_length=MAX_ENTRIES)
    margins: tuple[MarginOffset, ...] = Field((), max_length=MAX_ENTRIES)
    renamed_keys: ClassVar[dict[str, str]] = {}

    def difference(self, options: SamplingOptions) -> str:
        """How options of sampling, without None, differ from those of the calibration; "" if they do not."""
        pairs = {key: (getattr(options, key), getattr(self.sampling, key)) for key in COMPARED}
        return ", ".join(
            f"{key} is {now}, the calibration has {then}" for key, (now, then) in pairs.items() if now != then
        )

    def interval(self, measure: str, label: int | None, confidence: float = 0.9) -> IntervalOffset | None:
        """The offset of a measurement; None if it was not calibrated at this confidence."""
        same = (measure, label, confidence)
        return next((each for each in self.intervals if (each.measure, each.label, each.confidence) == same), None)

    def margin(self, label: int, confidence: float = 0.9) -> MarginOffset | None:
        """The depth of the margin of a class; None if it was not calibrated at this confidence."""
        return next((each for each in self.margins if (each.label, each.confidence) == (label, confidence)), None)

    @property
    def main_confidence(self) -> float:
        """The confidence that is shown where there is room for one: 0.9, or the highest that was calibrated."""
        every = {each.confidence for each in self.intervals} | {each.confidence for each in self.margins}
        return 0.9 if 0.9 in every or not every else max(every)

    def scaled(self, mean: Tensor) -> Tensor:
        """Mean probabilities "b l *space" after scaling; unchanged if none was fitted."""
        return mean if self.scaling is None else scale_probabilities(mean, self.scaling.slope, self.scaling.bias)

    @property
    def basis(self) -> str:
        """What it was fitted on and what it assumes, in one line for readers."""
        return f"calibrated on {self.patients} patients ({self.cases} cases of {self.data}); assumes exchangeable cases"

    def check_classes(self, num_classes: int, where: str) -> None:
        """Raise a UserError unless it fits a model of so many classes."""
        labels = [each.label or 0 for each in self.intervals] + [each.label for each in self.margins]
        highest = max(labels, default=0)
        slopes = num_classes if self.scaling is None else len(self.scaling.slope)
        if highest >= num_classes or slopes != num_classes:
            raise UserError(
                f"{where}: expected a calibration of {num_classes} classes, got one of {max(highest + 1, slopes)}; it "
                "belongs to another model: delete it or calibrate again"
            )


def read_calibration(file: Path, num_classes: int) -> Calibration | None:
    """Read the calibration of a model of so many classes; None if there is no file.

    Raises:
        UserError: if it is damaged or belongs to another model.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{file} has more than {MAX_BYTES:,} bytes: it is no calibration; delete it")
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    found = parse_json(content, str(file))
    calibration = Calibration.parse(found, where=str(file))
    calibration.check_classes(num_classes, str(file))
    return calibration
