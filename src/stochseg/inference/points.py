"""Lesions as points and boxes in a scan: parsed, read from a table, and located in its stack of slices."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stochseg.errors import UserError
from stochseg.inference.stacks import Lattice, Stack

Point = tuple[float, float, float]
AXES = ("x", "y", "z")
COLUMNS = ("input", "id", *AXES)
LONGEST_ID = 64
"""Characters that a DICOM text of type LO holds."""
_FORBIDDEN = frozenset('/\\:*?"<>|')
"""Characters that a file name, or a DICOM text, cannot hold on every system."""


@dataclass(frozen=True)
class Lesion:
    """A lesion to segment in a scan.

    Args:
        id: name of its results and of its segment; unique in its scan.
        corners: one point (x, y, z) in it, or two opposite corners of a box around it. Voxels are counted from 0 in the
            order of the file: the axes of the array of a NIfTI file; column, row and slice of a DICOM series, whose
            slices are ordered along their normal. Millimeters are those of the file: x to the left, y to the back and
            z to the head in DICOM (LPS), x to the right, y to the front and z to the head in NIfTI (RAS).
        input: the scan, by its path or by the name of its result folder; empty if there is only one.
        where: place of the lesion in a table, for messages.

    Raises:
        UserError: a coordinate is not a finite number, or the id cannot name a folder.

    >>> Lesion("a", ((250, 198, 71),)).is_box
    False
    """

    id: str
    corners: tuple[Point, ...]
    input: str = ""
    where: str = ""

    def __post_init__(self) -> None:
        for corner in self.corners:
            if len(corner) != 3 or not all(math.isfinite(value) for value in corner):
                raise UserError(f"{self}: expected three finite numbers x, y, z, got {_shown(corner)}")
        if len(self.corners) not in (1, 2):
            raise UserError(f"{self}: expected one point or two corners of a box, got {len(self.corners)} points")
        printable = self.id.isprintable() and not _FORBIDDEN.intersection(self.id)
        if not printable or self.id != self.id.strip(" .") or not 0 < len(self.id) <= LONGEST_ID:
            raise UserError(
                f"{self}: the id names a folder: expected 1 to {LONGEST_ID} characters without any of "
                f"{' '.join(sorted(_FORBIDDEN))}, and no space or dot at its ends; rename it"
            )

    @property
    def is_box(self) -> bool:
        """Whether the extent of the lesion is known."""
        return len(self.corners) == 2

    def __str__(self) -> str:
        return f"{self.where or 'lesion'} ({self.id!r})"


def parse_lesions(at: Sequence[str], box: Sequence[str]) -> list[Lesion]:
    """Parse the texts of --at, "x,y,z", and of --box, "x0,y0,z0,x1,y1,z1"; they are numbered from 1.

    >>> [lesion.corners for lesion in parse_lesions(["250,198,71"], [])]
    [((250.0, 198.0, 71.0),)]
    """
    lesions: list[Lesion] = []
    for option, count, texts in (("--at", 3, at), ("--box", 6, box)):
        for text in texts:
            try:
                numbers = [float(part) for part in text.split(",")]
            except ValueError:
                numbers = []
            if len(numbers) != count or not all(map(math.isfinite, numbers)):
                names = AXES if count == 3 else [f"{axis}{end}" for end in (0, 1) for axis in AXES]
                raise UserError(f"{option}: expected {count} finite numbers {','.join(names)}, got {text!r}")
            corners = tuple((x, y, z) for x, y, z in zip(*[iter(numbers)] * 3, strict=True))
            lesions.append(Lesion(str(len(lesions) + 1), corners, where=option))
    return lesions


def read_lesions(file: str | Path) -> list[Lesion]:
    """Read a table of points: CSV with the columns id, x, y, z, and input if it is about several scans.

    Args:
        file: the table; its first line names the columns, in any order. Other columns are ignored.

    Returns:
        One lesion per row.

    Raises:
        UserError: with the line, if a column or a value is missing, or an id occurs twice for one input.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/lesions.csv").write_text("id,x,y,z\\nleft,250,198,71\\n")
    ...     read_lesions(f"{folder}/lesions.csv")[0].corners
    ((250.0, 198.0, 71.0),)
    """
    file = Path(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise UserError(f"--points {file} cannot be read ({reason}); pass a table in CSV") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        names = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in COLUMNS[1:] if name not in names]
        if missing or len({*names}) < len(names):
            raise UserError(
                f"{file}, line 1: expected a header with the columns id, x, y, z and optionally input, separated by "
                f"commas, got {','.join(names)!r}"
            )
        reader.fieldnames = names
        lesions = [_parse_row(row, f"{file}, line {reader.line_num}") for row in reader if any(row.values())]
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}; save it as CSV again") from None
    if not lesions:
        raise UserError(f"{file}: expected one row per lesion below the header, got none")
    check_unique(lesions)
    return lesions


def _parse_row(row: dict[str, str | None], where: str) -> Lesion:
    if None in row or None in row.values():
        raise UserError(f"{where}: expected one value per column of the header; decimal commas are not understood")
    values = {name: (value or "").strip() for name, value in row.items()}
    numbers = []
    for axis in AXES:
        try:
            numbers.append(float(values[axis]))
        except ValueError:
            raise UserError(f"{where}: {axis}: expected a number, got {values[axis]!r}") from None
    return Lesion(values["id"], ((numbers[0], numbers[1], numbers[2]),), values.get("input", ""), where)


def check_unique(lesions: Iterable[Lesion]) -> None:
    """Raise a UserError if two lesions of one input have one id, or ids that are one folder on some systems."""
    seen: dict[tuple[str, str], Lesion] = {}
    for lesion in lesions:
        before = seen.setdefault((lesion.input, lesion.id.casefold()), lesion)
        if before is not lesion:
            raise UserError(f"{lesion}: the id is already that of {before}; give every lesion of a scan its own")


# --- in the stack ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A lesion in a stack "s h w". center: the voxel of the point, or in the middle of the box; size: voxels of the
    box per axis; None for a point."""

    center: tuple[int, int, int]
    size: tuple[int, int, int] | None = None

    @property
    def slices(self) -> tuple[int, int]:
        """First and last + 1 slice of the box, or of the point."""
        depth = 1 if self.size is None else self.size[0]
        start = self.center[0] - depth // 2
        return start, start + depth


def locate(lesion: Lesion, stack: Stack, *, mm: bool) -> Place:
    """Find the voxels of a lesion.

    Args:
        lesion: the point or box.
        stack: the scan.
        mm: whether coordinates are millimeters, not voxels.

    Raises:
        UserError: the lesion is outside the scan, the input is a picture, or it does not state its orientation.
    """
    lattice = stack.lattice
    if lattice is None:
        raise UserError("a picture is no scan: expected NIfTI or DICOM with a position in space; crop it instead")
    if mm and not lattice.is_oriented:
        raise UserError(
            "the file states no orientation (sform_code and qform_code are 0), so millimeters have no place in it; "
            "give voxels, without --mm"
        )
    corners = np.array([_stack_position(corner, lattice, stack.values.shape, mm) for corner in lesion.corners])
    # The positions of millimeters carry rounding errors, which must not decide between two voxels.
    voxels = np.floor(corners.clip(-1e9, 1e9).round(4) + 0.5).astype(np.int64)
    for corner, voxel in zip(lesion.corners, voxels, strict=True):
        if ((voxel < 0) | (voxel >= stack.values.shape[:3])).any():
            raise _outside(lesion, corner, voxel, stack, lattice, mm)
    low, high = voxels.min(0), voxels.max(0)
    depth, height, width = (int(length) for length in high - low + 1)
    s, h, w = (int(start + length // 2) for start, length in zip(low, (depth, height, width), strict=True))
    return Place((s, h, w), (depth, height, width) if lesion.is_box else None)


def describe_place(place: Place, stack: Stack) -> dict[str, object]:
    """The voxel of a lesion in the axes of the file, and its millimeters, as JSON values."""
    lattice = stack.lattice
    assert lattice is not None
    index = file_index(place.center, stack)
    space, sign = ("LPS", (-1, -1, 1)) if lattice.header is None else ("RAS", (1, 1, 1))
    mm = (lattice.affine @ [*index, 1])[:3] * lattice.unit * sign
    return {"voxel": index, "mm": [round(float(value), 4) for value in mm], "space": space}


def file_index(voxel: Sequence[int], stack: Stack) -> list[int]:
    """Convert a voxel (s, h, w) of a stack to the axes of its file."""
    assert stack.lattice is not None
    slicing, index = stack.lattice.slicing, [0, 0, 0]
    for axis, value, length in zip(slicing.axes, voxel, stack.values.shape, strict=False):
        index[axis] = length - 1 - value if axis in slicing.flipped else value
    return index


def _stack_position(corner: Point, lattice: Lattice, shape: Sequence[int], mm: bool) -> list[float]:
    """Convert a point of the file to a position (s, h, w) in its stack, in voxels."""
    index = np.array(corner, np.float64)
    if mm:
        ras = index * ((-1, -1, 1) if lattice.header is None else (1, 1, 1)) / lattice.unit
        index = np.linalg.solve(lattice.affine, [*ras, 1])[:3]
    axes, flipped = lattice.slicing.axes, lattice.slicing.flipped
    return [shape[i] - 1 - float(index[axis]) if axis in flipped else float(index[axis]) for i, axis in enumerate(axes)]


def _outside(
    lesion: Lesion, corner: Point, voxel: Sequence[int], stack: Stack, lattice: Lattice, mm: bool
) -> UserError:
    last = [0, 0, 0]
    for axis, length in zip(lattice.slicing.axes, stack.values.shape, strict=False):
        last[axis] = length - 1
    ranges = ", ".join(f"{name} 0 to {end}" for name, end in zip(AXES, last, strict=True))
    if not mm:
        return UserError(
            f"{lesion}: {_shown(corner)} is outside the scan, whose voxels are {ranges}; for millimeters pass --mm"
        )
    space = "LPS, as in DICOM" if lattice.header is None else "RAS, as in NIfTI"
    return UserError(
        f"{lesion}: {_shown(corner)} mm ({space}) is voxel {_shown(file_index(voxel, stack))}, outside the scan, whose "
        f"voxels are {ranges}; check the signs and the order of the coordinates"
    )


def _shown(values: Iterable[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"
