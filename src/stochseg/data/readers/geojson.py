"""Polygons of GeoJSON, as QuPath exports them, and label maps: both ways without loss.

Coordinates are pixels (x, y); the corner of the first pixel is (0, 0) and its center (0.5, 0.5). A pixel belongs to a
polygon if its center is inside. The outlines of a label map run along the edges of pixels, so that they give it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.polygons import MAX_COORDINATE, LabelMap, Pen, Ring
from stochseg.documents import parse_json
from stochseg.errors import UserError

SUFFIXES = (".geojson",)
Point: TypeAlias = tuple[int, int]
MAX_POINTS = 10**6


def read_polygons(content: bytes, where: str) -> list[tuple[str, list[Ring]]]:
    """Read the annotations of a file: the name of the class of each, and its rings, holes included.

    Raises:
        UserError: The file is no GeoJSON, or an annotation has another shape than polygons, or too many points.
    """
    document = parse_json(content, where)
    if isinstance(document, dict):
        document = document.get("features", [document])
    if not isinstance(document, list):
        raise UserError(f"{where}: expected a list of GeoJSON features, got {type(document).__name__}")
    found, points = [], 0
    for number, feature in enumerate(document):
        try:
            rings = _rings(feature["geometry"])
            name = _class_name(feature.get("properties") or {})
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise UserError(
                f"{where}: annotation {number} is no polygon; expected Polygon or MultiPolygon with pixel coordinates"
            ) from None
        points += sum(map(len, rings))
        if points > MAX_POINTS:
            raise UserError(f"{where}: expected at most {MAX_POINTS:,} points; simplify the polygons")
        found.append((name, rings))
    return found


def _rings(geometry: Any) -> list[Ring]:
    parts = geometry["coordinates"]
    if geometry["type"] == "Polygon":
        parts = [parts]
    elif geometry["type"] != "MultiPolygon":
        raise ValueError(geometry["type"])
    rings = [np.asarray(ring, np.float64) for part in parts for ring in part]
    if not all(ring.ndim == 2 and ring.shape[1] >= 2 and len(ring) >= 3 for ring in rings):
        raise ValueError("points")
    if not all((np.abs(ring) <= MAX_COORDINATE).all() for ring in rings):  # NaN fails, too
        raise ValueError("coordinates")
    return [ring[:, :2] for ring in rings]


def _class_name(properties: Any) -> str:
    classification = properties.get("classification") or {}
    names = classification.get("names") or [classification.get("name")]
    return str(names[0] or properties.get("name") or "")


def draw_polygons(content: bytes, size: tuple[int, int], class_names: Sequence[str], where: str) -> LabelMap:
    """Draw the annotations of a file as label map "h w"; later ones lie over earlier ones.

    Args:
        content: Of the file.
        size: Height and width of the image.
        class_names: Of the labels 0, 1, …; annotations name theirs. With two classes, one without a name is class 1.
        where: The file, for error messages.

    Raises:
        UserError: The file cannot be read, or names an unknown class.
    """
    known = {name.casefold(): label for label, name in enumerate(class_names)}
    labels = np.zeros(size, np.uint8 if len(class_names) <= 256 else np.uint16)
    pen = Pen(where)
    for name, rings in read_polygons(content, where):
        label = 1 if not name and len(class_names) == 2 else known.get(name.casefold())
        if label is None:
            raise UserError(
                f"{where}: an annotation is of class {name!r}, expected one of {', '.join(class_names)}; rename it, or "
                "set class_names"
            )
        pen.draw(labels, rings, label)
    return labels


def trace_rings(mask: npt.NDArray[np.bool_]) -> list[Ring]:
    """Trace the outlines of a mask "h w" along the edges of its pixels, as closed rings; those of holes included."""
    padded = np.pad(mask, 1).astype(np.int8)
    across, down = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    following: dict[Point, list[Point]] = {}
    for y, x in np.argwhere(across).tolist():  # with the mask on the right of the direction
        ends = ((x, y), (x + 1, y)) if across[y, x] > 0 else ((x + 1, y), (x, y))
        following.setdefault(ends[0], []).append(ends[1])
    for y, x in np.argwhere(down).tolist():
        ends = ((x, y + 1), (x, y)) if down[y, x] > 0 else ((x, y), (x, y + 1))
        following.setdefault(ends[0], []).append(ends[1])
    rings = []
    while following:
        first = next(iter(following))
        points, here = [first], _step(following, first, first)
        while here != first:
            points.append(here)
            here = _step(following, points[-2], here)
        rings.append(_corners(np.array(points, np.float64)))
    return rings


def _step(following: dict[Point, list[Point]], before: Point, here: Point) -> Point:
    """Follow an edge from a point. Where two start, turn to the right, around the same pixel."""
    ends = following[here]
    right = (here[0] - (here[1] - before[1]), here[1] + (here[0] - before[0]))
    there = ends.pop(ends.index(right) if right in ends else -1)
    if not ends:
        del following[here]
    return there


def _corners(points: Ring) -> Ring:
    """Leave out points on straight lines, and close the ring."""
    turns = (np.roll(points, -1, 0) - points) != (points - np.roll(points, 1, 0))
    corners = points[turns.any(1)]
    return np.concatenate([corners, corners[:1]])
