"""dataset.yaml: the description of a folder of images and label maps."""

from __future__ import annotations

import re
from typing import ClassVar

import regex
from pydantic import Field, PositiveFloat, model_validator

from stochseg.data.readers.nifti import Plane
from stochseg.errors import UserError
from stochseg.types import DatasetInfo

DESCRIPTION = "dataset.yaml"
INIT = "stochseg data init"
"""The command that calls `init_folder`."""
MAX_SECONDS = 1.0
"""Time that the expression `group` may take per image."""


class FolderConfig(DatasetInfo):
    """The facts that a model needs, and how the files express them."""

    group: str | None = None
    """Regular expression with one pair of parentheses, searched in the ID of an image, that captures its patient.
    Images of one patient must share a split. None: every image is its own group, unless its name says otherwise, which
    `stochseg data check` reports; "(.+)" says that it is."""
    values: dict[int | str, int] = Field(default_factory=dict)
    """Class of each stored label value, or of a color "#rrggbb", if it is not the value itself."""
    threshold: float | None = None
    """Gray levels from here on are class 1, all others class 0: for masks that were saved as JPEG or smoothed."""
    plane: Plane = "axial"
    """Plane of the slices of volumes, which are turned by their affines."""
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    """Millimeters between slices, rows and columns to which volumes are resampled. None: each has its own."""
    license: str = "not stated"
    citation: str = ""
    renamed_keys: ClassVar[dict[str, str]] = {"licence": "license"}

    @model_validator(mode="after")
    def _check(self) -> FolderConfig:
        if self.group is not None:
            _check_expression(self.group)
        if self.spacing is not None and self.spatial_dims != 3:
            raise ValueError("spacing resamples volumes: it needs spatial_dims: 3")
        for color in (*self.palette, *(key for key in self.values if isinstance(key, str))):
            if not re.fullmatch("#[0-9a-fA-F]{6}", color):
                raise ValueError(f"expected a color such as '#e8853c', got {color!r}")
        if len({color.lower() for color in self.palette}) < len(self.palette):
            raise ValueError(f"palette lists a color twice: {list(self.palette)}")
        if len({*self.class_names}) < len(self.class_names):
            raise ValueError(f"class_names lists a name twice: {list(self.class_names)}")
        if self.threshold is not None and (self.num_classes != 2 or self.values):
            raise ValueError("threshold makes masks of 2 classes: it needs num_classes: 2 and no values")
        wrong = {value for value in self.values.values() if value not in (*range(self.num_classes), self.ignore)}
        if wrong:
            raise ValueError(f"values maps to {sorted(wrong)}, which are neither classes nor ignore")
        return self

    @property
    def info(self) -> DatasetInfo:
        """The part that is saved with the weights of a model."""
        return DatasetInfo.model_validate(self.model_dump(include=set(DatasetInfo.model_fields)))

    def group_of(self, id: str) -> str:
        """Return the patient of an image."""
        if self.group is None:
            return id
        try:
            found = regex.search(self.group, id, timeout=MAX_SECONDS)
        except TimeoutError:
            raise UserError(
                f"image {id!r}: `group` {self.group!r} of {DESCRIPTION} takes more than {MAX_SECONDS:g} s; avoid a "
                "repetition inside a repetition, such as (a+)+"
            ) from None
        if found is None or not found[1]:
            raise UserError(f"image {id!r}: `group` {self.group!r} of {DESCRIPTION} finds no patient in its name")
        return str(found[1])


def _check_expression(text: str) -> None:
    try:
        count = regex.compile(text).groups
    except regex.error as error:
        raise ValueError(f"group {text!r} is not a regular expression: {error}") from None
    if count != 1:
        raise ValueError(f"group {text!r} has {count} pairs of parentheses, expected one around the patient")
