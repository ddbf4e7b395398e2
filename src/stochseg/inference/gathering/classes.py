"""The classes that all members of a call share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stochseg.data.nnunet import DATASET, label_names
from stochseg.errors import UserError
from stochseg.inference.gathering.cases import Case
from stochseg.inference.gathering.maps import Map
from stochseg.models.io import read_json
from stochseg.types import DatasetInfo


def stated_names(cases: Sequence[Case], given: Sequence[str]) -> tuple[str, ...]:
    """Names of the labels 0, 1, …: those that the user gave, or those of dataset.json; () if nothing states them.

    Raises:
        UserError: Members have different label sets, or the given names are not those of two or more classes.
    """
    if given:
        if len(given) < 2 or len({*given}) < len(given):
            raise UserError(
                "classes: expected the names of all labels, each once and the background first, such as "
                f"background,nodule, got {','.join(given)}"
            )
        return tuple(given)
    folders = {member.file.parent for case in cases for member in case.members}
    stated: dict[tuple[str, ...], Path] = {}
    for folder in sorted(folders):
        file = next((f for f in (folder / DATASET, folder.parent / DATASET) if f.is_file()), None)
        if file is not None:
            stated.setdefault(label_names(read_json(file), str(file))[0], file)
    if len(stated) > 1:
        (first, one), (second, other), *_ = stated.items()
        raise UserError(
            f"members have different label sets: {', '.join(first)} ({one}) and {', '.join(second)} ({other}); gather "
            "models of the same classes"
        )
    return next(iter(stated), ())


def stated_info(names: Sequence[str]) -> DatasetInfo:
    """Facts about classes of these names."""
    return DatasetInfo.parse(
        {"name": "gathered", "num_classes": len(names), "image_channels": 1, "class_names": tuple(names)},
        where="the names of the classes",
    )


def found_info(num_classes: int, found: Mapping[int, str]) -> DatasetInfo:
    """Facts about classes without names.

    Args:
        num_classes: The number of classes that all maps need.
        found: Label values that occur, each with a case that has it.

    Raises:
        UserError: Label values have gaps.
    """
    highest = max(found, default=0)
    gaps = [label for label in range(1, highest) if label not in found]
    if gaps:
        few = ", ".join(map(str, gaps[:5])) + (" …" if len(gaps) > 5 else "")
        raise UserError(
            f"{found[highest]}: a prediction of this case has label {highest}, but the labels {few} occur in no "
            "prediction; if they are classes, name all with --classes, otherwise number the classes without gaps"
        )
    return DatasetInfo(name="gathered", num_classes=max(2, num_classes), image_channels=1)


def check_classes(maps: Sequence[Map], info: DatasetInfo, where: str) -> None:
    """Raise a `UserError` if predictions have labels or probabilities of other classes."""
    known = f"{info.num_classes} classes ({', '.join(info.names)})"
    for each in maps:
        if each.probabilities is not None and len(each.probabilities) != info.num_classes:
            raise UserError(
                f"{where}: expected probabilities of {known}, got {len(each.probabilities)}; gather models of the same "
                "classes, and name all with --classes"
            )
        if each.num_classes > info.num_classes:
            raise UserError(
                f"{where}: expected labels of {known}, got label {each.num_classes - 1}; gather models of the same "
                "classes, and name all with --classes"
            )
