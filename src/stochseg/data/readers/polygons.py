"""Polygons drawn into label maps: a pixel belongs to a polygon if its center is inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.errors import UserError

Ring: TypeAlias = npt.NDArray[np.float64]
"""A closed line of points "n 2" (x, y). The corner of the first pixel is (0, 0) and its center (0.5, 0.5)."""
LabelMap: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
MAX_COORDINATE = 1e9
MAX_STEPS = 10**9
"""Pixels in the boxes around all polygons of a file, and 25 for every row that a line crosses: some seconds."""
_BLOCK = 2**20
"""Crossings that are computed at once."""


@dataclass
class Pen:
    """Draws the polygons of a file.

    where: the file, for error messages; steps: what was drawn so far, which may reach `MAX_STEPS`.
    """

    where: str
    steps: int = 0

    def draw(self, labels: LabelMap, rings: Sequence[Ring], label: int) -> None:
        """Give a label to the pixels of "h w" whose centers are inside an odd number of rings: holes stay free.

        Raises:
            UserError: The polygons of the file are too large and too complex together.
        """
        lines = _Lines.of(rings, labels.shape)
        self.steps += lines.steps
        if self.steps > MAX_STEPS:
            height, width = labels.shape
            raise UserError(
                f"{self.where}: its polygons are too complex for an image of {height}×{width} pixels; simplify "
                "them, or cut the image"
            )
        labels[lines.place][lines.fill()] = label


@dataclass(frozen=True)
class _Lines:
    """The lines of rings: x0, y0, x1, y1 of each, "n 4"; the rows whose centers they cross; their box in the image."""

    ends: npt.NDArray[np.float64]
    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    place: tuple[slice, slice]

    @classmethod
    def of(cls, rings: Sequence[Ring], size: tuple[int, ...]) -> _Lines:
        height, width = size
        ends = np.concatenate([np.zeros((0, 4)), *(np.c_[ring, np.roll(ring, -1, 0)] for ring in rings)])
        rows = _after(ends[:, 1::2], height)
        first, count = rows.min(1), np.ptp(rows, axis=1)  # rows whose centers y + 0.5 are in [low, high)
        ends, first, count = ends[count > 0], first[count > 0], count[count > 0]
        if len(ends) == 0:
            return cls(ends, first, count, (slice(0, 0), slice(0, 0)))
        columns = _after(ends[:, ::2], width)
        rows_used = slice(int(first.min()), int((first + count).max()))
        return cls(ends, first, count, (rows_used, slice(int(columns.min()), int(columns.max()))))

    @property
    def steps(self) -> int:
        """An estimate of the work."""
        rows, columns = (part.stop - part.start for part in self.place)
        return int(rows * columns + 25 * self.count.sum())

    def fill(self) -> npt.NDArray[np.bool_]:
        """The pixels of the box that are inside. A center on a line belongs to the polygon on its right, so that
        neighbors share no pixel."""
        rows, columns = self.place
        crossings = np.zeros((rows.stop - rows.start, columns.stop - columns.start + 1), np.uint8)
        for part in self._blocks():
            count, ends = self.count[part], self.ends[part]
            line = np.repeat(np.arange(len(count)), count)
            row = np.arange(len(line)) + (self.first[part] - (np.cumsum(count) - count))[line]
            x0, y0, x1, y1 = ends[line].T
            # The first column whose center is at or right of the line.
            column = np.clip(np.ceil(x0 + (row + 0.5 - y0) * (x1 - x0) / (y1 - y0) - 0.5), columns.start, columns.stop)
            np.add.at(crossings, (row - rows.start, column.astype(np.int64) - columns.start), 1)
        crossings &= 1  # in place: a box may be as large as the image
        for row_crossings in crossings:
            np.bitwise_xor.accumulate(row_crossings, out=row_crossings)
        return crossings[:, :-1].view(bool)

    def _blocks(self) -> Iterator[slice]:
        total = np.cumsum(self.count)
        start = 0
        while start < len(total):
            before = total[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(total, before + _BLOCK, side="right")))
            yield slice(start, stop)
            start = stop


def _after(values: npt.NDArray[np.float64], limit: int) -> npt.NDArray[np.int64]:
    """The first pixels whose centers are not before these coordinates."""
    after: npt.NDArray[np.int64] = np.clip(np.ceil(values - 0.5), 0, limit).astype(np.int64)
    return after


def fill_rings(rings: Sequence[Ring], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels "h w" whose centers are inside an odd number of rings: see `Pen.draw`."""
    labels = np.zeros(size, np.uint8)
    Pen("polygons").draw(labels, rings, 1)
    return labels.astype(bool)
