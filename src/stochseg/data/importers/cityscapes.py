"""Cityscapes with the fine annotations of train and val: 19 classes, full size or reduced.

Cordts et al. 2016. Label maps are read in the form that is there: labelTrainIds, labelIds, or the polygons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import check_labels, stack_labels
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.limits import check_memory
from stochseg.types import DatasetInfo, Normalization

IMAGENET = Normalization(
    mean=tuple(255 * v for v in (0.485, 0.456, 0.406)), std=tuple(255 * v for v in (0.229, 0.224, 0.225))
)
"""Normalization of pretrained encoders, for raw intensities 0..255."""

VOID = 255
_CLASSES = (
    ("road", "#804080"),
    ("sidewalk", "#f423e8"),
    ("building", "#464646"),
    ("wall", "#66669c"),
    ("fence", "#be9999"),
    ("pole", "#999999"),
    ("traffic light", "#faaa1e"),
    ("traffic sign", "#dcdc00"),
    ("vegetation", "#6b8e23"),
    ("terrain", "#98fb98"),
    ("sky", "#4682b4"),
    ("person", "#dc143c"),
    ("rider", "#ff0000"),
    ("car", "#00008e"),
    ("truck", "#000046"),
    ("bus", "#003c64"),
    ("train", "#005064"),
    ("motorcycle", "#0000e6"),
    ("bicycle", "#770b20"),
)
NAMES = tuple(name for name, _ in _CLASSES)
PALETTE = tuple(color for _, color in _CLASSES)

LABEL_NAMES = (
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground"),
    *("road", "sidewalk", "parking", "rail track", "building", "wall", "fence", "guard rail", "bridge", "tunnel"),
    *("pole", "polegroup", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider"),
    *("car", "truck", "bus", "caravan", "trailer", "train", "motorcycle", "bicycle"),
)
"""All labels that annotators used; the index of a name is its labelId."""

TRAIN_IDS = np.array([NAMES.index(name) if name in NAMES else VOID for name in LABEL_NAMES], np.uint8)
"""Class of each labelId: labels that are not among the 19 classes are void."""

_UNDRAWN = "license plate"
"""The only label without a labelId: its outlines are in no label map."""

_TRAIN_IDS, _POLYGONS = "labelTrainIds.png", "polygons.json"
_FORMS = (_TRAIN_IDS, "labelIds.png", _POLYGONS)
"""Forms of a label map, the preferred one first."""

_IMAGE = re.compile(r"(?:^|/)leftImg8bit/(train|val)/([^/]+)/([^/]+)_leftImg8bit\.png$")
_LABEL = re.compile(
    rf"(?:^|/)gtFine/(train|val)/([^/]+)/([^/]+)_gtFine_({'|'.join(re.escape(form) for form in _FORMS)})$"
)


@dataclass(frozen=True)
class _File:
    """A file, and the folder or zip that contains it."""

    tree: Tree
    name: str

    @property
    def where(self) -> str:
        return self.tree.where(self.name)


@register_importer("cityscapes")
def cityscapes(source: Path) -> Plan:
    """Plan the import of leftImg8bit/ and gtFine/ at 1024×2048: a folder, a zip, or a folder of both official zips."""
    return _plan(source, "cityscapes", None)


@register_importer("cityscapes-256x512")
def cityscapes_256x512(source: Path) -> Plan:
    """Plan the import of Cityscapes reduced to 256×512."""
    return _plan(source, "cityscapes-256x512", (256, 512))


@register_importer("cityscapes-128x256")
def cityscapes_128x256(source: Path) -> Plan:
    """Plan the import of Cityscapes reduced to 128×256."""
    return _plan(source, "cityscapes-128x256", (128, 256))


def _plan(source: Path, kind: str, size: tuple[int, int] | None) -> Plan:
    items = _items(source, size)
    if not items:
        raise UserError(
            f"{source}: expected leftImg8bit/train/CITY/*_leftImg8bit.png and val, found none; give the folder with "
            "leftImg8bit/ and gtFine/, or with leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip"
        )
    info = DatasetInfo(
        name=kind,
        num_classes=len(NAMES),
        image_channels=3,
        class_names=NAMES,
        palette=PALETTE,
        ignore=VOID,
        normalization=IMAGENET,
        orientation="upright",
    )
    reduced = (
        "" if size is None else f"; reduced to {size[0]}×{size[1]}: images bilinear with antialiasing, labels nearest"
    )
    provenance = Provenance(
        kind=kind,
        source=source.resolve().name,
        license="Cityscapes license: non-commercial, after registration",
        citation="Cordts et al., The Cityscapes Dataset for Semantic Urban Scene Understanding, CVPR 2016",
        note=f"official train and val; test is skipped because its public labels are dummies{reduced}",
    )
    return Plan(info, provenance, items, max_raters=1)


# ---------------------------------------------------------------------- files


def _items(source: Path, size: tuple[int, int] | None) -> list[Item]:
    images: dict[tuple[str, ...], _File] = {}
    labels: dict[tuple[str, ...], _File] = {}
    zips = sorted(source.glob("*.zip")) if source.is_dir() else []
    for tree in map(Tree, (source, *zips)):
        for name in tree.names:
            if found := _IMAGE.search(name):
                images.setdefault(found.groups(), _File(tree, name))
            elif found := _LABEL.search(name):
                labels.setdefault(found.groups(), _File(tree, name))
    items = []
    for (split, city, stem), image in images.items():
        record = (stem, city, split)
        forms = [labels[key] for form in _FORMS if (key := (split, city, stem, form)) in labels]
        if not forms:
            raise UserError(
                f"{image.where} has no label map: expected gtFine/{split}/{city}/{stem}_gtFine_ with one of "
                f"{', '.join(_FORMS)}; unpack gtFine next to leftImg8bit, or give the folder of both official zips"
            )
        items.append(Item(*record, partial(_read, record, image, forms[0], size)))
    return items


# ---------------------------------------------------------------------- reading


def _read(record: tuple[str, str, str], image: _File, labels: _File, size: tuple[int, int] | None) -> Record:
    pixels = image.tree.picture(image.name).values
    classes = stack_labels([_read_labels(labels)], [labels.where], pixels.shape[:2])[0]
    if size is not None:
        # Intensities are averaged; a label is never a mixture, so it is that of the nearest pixel.
        pixels = _resized(pixels, size, Image.Resampling.BILINEAR)
        classes = _resized(classes, size, Image.Resampling.NEAREST)
    return Record(*record, pixels, classes[None])


def _read_labels(file: _File) -> Pixels:
    """Read the classes "h w" from any form of label map."""
    if file.name.endswith(_TRAIN_IDS):
        return _checked(file.tree.labels(file.name), len(NAMES), VOID, file)
    polygons = file.name.endswith(_POLYGONS)
    ids = _draw(file) if polygons else _checked(file.tree.labels(file.name), len(LABEL_NAMES), None, file)
    return np.take(TRAIN_IDS, ids)


def _checked(labels: Pixels, count: int, void: int | None, file: _File) -> Pixels:
    declared = DatasetInfo(num_classes=count, image_channels=3, ignore=void)
    return check_labels(labels, declared, file.where, "make it again with the official cityscapesScripts")


def _draw(file: _File) -> Pixels:
    """Draw the labelIds of the outlines in their order: later ones are in front."""
    try:
        drawing = parse_json(file.tree.read(file.name), file.where)
        check_memory(4 * drawing["imgWidth"] * drawing["imgHeight"], file.where)
        canvas = Image.new("L", (drawing["imgWidth"], drawing["imgHeight"]), LABEL_NAMES.index("unlabeled"))
        pen = ImageDraw.Draw(canvas)
        for thing in drawing["objects"]:
            if thing["label"] != _UNDRAWN and not thing.get("deleted"):
                pen.polygon([tuple(point) for point in thing["polygon"]], fill=_label_id(thing["label"], file))
    except UserError:
        raise
    except Exception as error:  # any value can be of any kind
        raise UserError(
            f"{file.where}: expected JSON with imgWidth, imgHeight and objects of label and polygon, got {error!r}; "
            "download it again"
        ) from None
    return np.asarray(canvas)


def _label_id(label: str, file: _File) -> int:
    """Return the labelId of a label. A group such as "cargroup" counts as its members; "polegroup" is a label."""
    name = label if label in LABEL_NAMES else label.removesuffix("group")
    if name not in LABEL_NAMES:
        raise UserError(f"{file.where}: unknown label {label!r}; known: {', '.join(LABEL_NAMES)}")
    return LABEL_NAMES.index(name)


def _resized(array: Pixels, size: tuple[int, int], how: Image.Resampling) -> Pixels:
    return np.asarray(Image.fromarray(array).resize((size[1], size[0]), how))
