"""The layout of nnU-Net's data sets: dataset.json, imagesTr, labelsTr, one image file per channel.

What nnU-Net has no place for (several raters, patients, splits, colors) is kept in dataset.json under the key
`stochseg`, which nnU-Net ignores, so that an export can be imported without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from stochseg.config import Config
from stochseg.data.readers.nifti import Plane
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Spacing

DATASET = "dataset.json"
OURS = "stochseg"
"""Key of dataset.json with everything that nnU-Net has no place for."""
IGNORE = "ignore"
"""Name of nnU-Net's label for void pixels, the highest one."""


class CaseFacts(Config):
    """What an export states about a case that its files do not."""

    id: str
    group: str
    split: str
    raters: tuple[str, ...] = Field((), description="folders of its label maps, in order; () is labelsTr or labelsTs")
    rater_names: tuple[str, ...] = ()
    spacing: Spacing | None = None


class ExportFacts(Config):
    """The key `stochseg` of dataset.json."""

    info: DatasetInfo
    cases: dict[str, CaseFacts]
    plane: Plane = "axial"
    license: str = "not stated"
    citation: str = ""


def label_names(description: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], int | None]:
    """Read the labels of dataset.json.

    Returns:
        The names of the labels 0, 1, …, and the label of void pixels, if there is one. Regions overlap, so that their
        labels have no names of their own.

    Raises:
        UserError: It states no labels, or labels with gaps.
    """
    labels = description.get("labels") if isinstance(description, Mapping) else None
    if not isinstance(labels, dict) or not labels:
        raise UserError(f"{where}: expected the labels of nnU-Net, such as {{'background': 0, 'liver': 1}}")
    if all(isinstance(name, str) and str(key).isdecimal() for key, name in labels.items()):  # of version 1
        labels = {name: key for key, name in labels.items()}
    try:
        parts = {name: [_whole(n) for n in (v if isinstance(v, list) else [v])] for name, v in labels.items()}
        if not all(parts.values()):
            raise ValueError("a label without a number")
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: expected labels that are whole numbers, got {labels}") from None
    ignore = next(iter(parts.pop(IGNORE, [])), None)
    numbers = sorted({number for part in parts.values() for number in part})
    if numbers != list(range(len(numbers))) or len(numbers) < 2:
        raise UserError(f"{where}: expected labels 0, 1, … without gaps, got {numbers}")
    if any(len(part) > 1 for part in parts.values()):
        return tuple("background" if i == 0 else f"class {i}" for i in numbers), ignore
    names = {part[0]: str(name) for name, part in parts.items()}
    return tuple(names[i] for i in numbers), ignore


def _whole(value: Any) -> int:
    """Read 2, 2.0 or "2"; 2.5, infinity and other values raise ValueError, TypeError or OverflowError."""
    if not float(value).is_integer():
        raise ValueError(f"{value} is not whole")
    return int(float(value))
