"""LIDC-IDRI in the forms that people have it: nodule-centred slices with four label maps.

Armato et al. 2011, distributed by TCIA under CC BY 3.0.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np

from stochseg.data.readers import Tree, stack_labels
from stochseg.data.store import Item, Plan, Provenance, Record, register_importer
from stochseg.errors import UserError
from stochseg.types import DatasetInfo

LICENCE = "CC BY 3.0"
CITATION = (
    "Armato et al., The Lung Image Database Consortium and Image Database Resource Initiative, Med. Phys. 38, 2011"
)
INFO = DatasetInfo(
    name="lidc", num_classes=2, image_channels=1, class_names=("background", "nodule"), palette=("#000000", "#e8853c")
)


def published_split(patient: str) -> str:
    """The project's split by patient: a hash of the id decides, 64% train, 16% val, 20% test."""
    place = int(hashlib.sha256(patient.encode()).hexdigest(), 16) % 100
    return "train" if place < 64 else "val" if place < 80 else "test"


@register_importer("lidc-slices")
def lidc_slices(source: Path) -> Plan:
    """The public PNG tree PATIENT/nodule-N/images/slice-S.png with mask-0 … mask-3 beside `images`, folder or zip."""
    tree = Tree(source)
    pattern = re.compile(r"(?:^|/)(LIDC-IDRI-\d+)/nodule-(\d+)/images/slice-(\d+)\.png$")
    masks = {name for name in tree.names if "/mask-" in name}
    items = []
    for name in tree.names:
        found = pattern.search(name)
        if not found:
            continue
        patient, nodule, slice_ = found[1], int(found[2]), int(found[3])
        files = [f for f in (name.replace("/images/", f"/mask-{i}/") for i in range(4)) if f in masks]
        if not files:
            raise UserError(f"{tree.where(name)} has no label map: expected mask-0 … mask-3 beside images/")
        record = (f"{patient}-n{nodule:02d}-s{slice_:03d}", patient, published_split(patient))
        items.append(Item(*record, partial(_read_slice, tree, name, files, record)))
    provenance = Provenance(
        kind="lidc-slices",
        source=source.name,
        licence=LICENCE,
        citation=CITATION,
        note="split by patient: sha256(patient id) % 100, below 64 train, below 80 val, the rest test; "
        "the order of the four masks is not a stable rater",
    )
    return Plan(INFO, provenance, items, max_raters=4)


def _read_slice(tree: Tree, name: str, masks: list[str], record: tuple[str, str, str]) -> Record:
    image = tree.image(name)
    if image.ndim != 2:
        raise UserError(f"{tree.where(name)}: expected a grey image, got shape {image.shape}")
    maps = [_binary(tree.image(mask), tree.where(mask)) for mask in masks]
    return Record(*record, image[..., None], stack_labels(maps, [tree.where(m) for m in masks], image.shape))


def _binary(mask: np.ndarray, where: str) -> np.ndarray:
    """0 and 255 (or 0 and 1) to 0 and 1."""
    values = set(np.unique(mask).tolist())
    if not (values <= {0, 255} or values <= {0, 1}):
        raise UserError(f"{where}: expected a mask of 0 and 255, got values {sorted(values)[:6]}")
    return (mask > 0).astype(np.uint8)
