"""DICOM series as volumes: their slices in order, and their position in space, read with pydicom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.dicom import read_dataset
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError

Affine: TypeAlias = npt.NDArray[np.float64]
Vector: TypeAlias = npt.NDArray[np.float64]

NOT_IMAGES = ("SEG", "RTSTRUCT", "RTPLAN", "RTDOSE", "SR", "PR", "KO", "REG")
"""Modalities of DICOM objects that accompany images in a folder."""
TOLERANCE = 0.02
"""Relative difference allowed between slice distances: positions are stored as rounded text."""
_NEEDED = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "Rows", "Columns")


def read_header(file: Path) -> Any:
    """Read a DICOM file without its pixels."""
    return read_dataset(file, str(file), stop_before_pixels=True)


@dataclass(frozen=True)
class Series:
    """The slices "s h w" or "s h w c" of a series in the order along their normal, and their headers.

    affine: column, row and slice to millimeters, "4 4": x to the right, y to the front, z to the head, as in NIfTI;
    None for an image without a position; spacing: of rows and columns in millimeters, if stated.
    """

    values: Pixels
    affine: Affine | None
    spacing: tuple[float, float] | None
    headers: tuple[Any, ...]


def read_series(files: Sequence[Path]) -> Series:
    """Read the slices of a DICOM series, with the modality's slope and intercept.

    Raises:
        UserError: The files are not all images of one series, or its slices differ in size, overlap or have gaps.
    """
    headers = [read_header(file) for file in files]
    for file, header in zip(files, headers, strict=True):
        missing = [tag for tag in _NEEDED if header.get(tag) in (None, "")]
        if missing:
            raise UserError(f"{file}: the DICOM header has no {missing[0]} or is cut short; export it again")
        if str(header.get("Modality", "")) in NOT_IMAGES:
            raise UserError(f"{file} is a DICOM {header.Modality}, expected an image")
        if header.SeriesInstanceUID != headers[0].SeriesInstanceUID:
            raise UserError(f"{file} belongs to another DICOM series than {files[0].name}; keep one series per folder")
    affine, order = _place(files, headers)
    pictures = [Tree(files[i].parent).picture(files[i].name) for i in order]
    shapes = {picture.values.shape for picture in pictures}
    if len(shapes) > 1:
        raise UserError(f"the slices of the series differ in size: {sorted(shapes)}; use them as single files")
    values = np.stack([picture.values for picture in pictures])
    return Series(values, affine, pictures[0].spacing, tuple(headers[i] for i in order))


@dataclass(frozen=True)
class _Slice:
    """Position of a slice in the patient coordinates of DICOM, in millimeters.

    directions: along a row and along a column, "2 3"; spacing: between rows and between columns.
    """

    name: str
    position: Vector
    directions: Vector
    spacing: Vector


def _place(files: Sequence[Path], headers: Sequence[Any]) -> tuple[Affine | None, list[int]]:
    """Find the position of the slices, and their order along the normal. None for an image without one: an X-ray."""
    located = [_locate(file, header) for file, header in zip(files, headers, strict=True)]
    slices = [each for each in located if each is not None]
    if len(slices) < len(files):
        if len(files) == 1:
            return None, [0]
        name = files[located.index(None)].name
        raise UserError(
            f"{name} has no position in space, so the {len(files)} slices have no order; use them as single files"
        )
    first = slices[0]
    for each in slices:
        parallel = np.allclose(each.directions, first.directions, atol=1e-3)
        if not (parallel and np.allclose(each.spacing, first.spacing, rtol=1e-3)):
            raise UserError(
                f"{each.name} is turned or spaced differently from {first.name} of the same series (a localizer?); "
                "remove it, or use the slices as single files"
            )
    across, down = first.directions
    normal = np.cross(across, down)
    heights = np.array([each.position for each in slices]) @ normal
    order = np.argsort(heights, kind="stable").tolist()
    slices = [slices[i] for i in order]
    step = normal * _thickness(headers[0]) if len(slices) == 1 else _step(slices, heights[order])
    lps = np.eye(4)
    lps[:3] = np.column_stack([across * first.spacing[1], down * first.spacing[0], step, slices[0].position])
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps, order


def _locate(file: Path, header: Any) -> _Slice | None:
    tags = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
    if any(header.get(tag) in (None, "") for tag in tags):
        return None
    try:
        position, orientation, spacing = (np.array([float(v) for v in header[tag].value]) for tag in tags)
        directions = orientation.reshape(2, 3)
        good = position.shape == (3,) and spacing.shape == (2,) and (spacing > 0).all()
        if good and np.allclose(directions @ directions.T, np.eye(2), atol=1e-2):
            return _Slice(file.name, position, directions, spacing)
    except (ValueError, TypeError):
        pass
    raise UserError(f"{file}: position, orientation or spacing in the DICOM header make no sense; export it again")


def _thickness(header: Any) -> float:
    """Thickness of a single slice in millimeters: the first tag that states one, or 1."""
    for tag in ("SpacingBetweenSlices", "SliceThickness"):
        try:
            length = abs(float(header.get(tag) or 0))
        except (ValueError, TypeError):  # such as "5,0"
            continue
        if 0 < length < np.inf:
            return length
    return 1.0


def _step(slices: Sequence[_Slice], heights: Vector) -> Vector:
    """Offset from a slice to the next, oblique for a tilted gantry. Slices must be evenly spaced."""
    names = [each.name for each in slices]
    check_gaps(names, heights, usual_gap(heights), "complete the series, or use the slices as single files")
    return (slices[-1].position - slices[0].position) / (len(slices) - 1)


def usual_gap(heights: Vector) -> float:
    """Return the distance between most neighbors of two or more sorted positions."""
    gaps = np.sort(np.diff(heights))
    return float(gaps[(len(gaps) - 1) // 2])


def check_gaps(names: Sequence[str], heights: Vector, usual: float, remedy: str) -> None:
    """Check that slices are evenly spaced.

    Args:
        names: Names of the slices, for messages.
        heights: Their sorted positions in millimeters.
        usual: Distance between most slices of the series.
        remedy: Advice in the message if they are not.

    Raises:
        UserError: A slice is missing, two lie at the same place, or the distances differ.
    """
    for lower, upper, gap in zip(names, names[1:], np.diff(heights), strict=False):
        pair = f"{lower} and {upper}"
        if gap < 1e-3:
            raise UserError(f"{pair} lie at the same place (a second phase, or a copy?); give one volume at a time")
        if abs(gap - usual) > TOLERANCE * usual + 2e-3:
            problem = "a slice is missing" if gap > usual else "the slices are not evenly spaced"
            raise UserError(
                f"{pair} lie {gap:.3g} mm apart, most slices of the series {usual:.3g} mm: {problem}; {remedy}"
            )
