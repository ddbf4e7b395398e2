"""CamVid in the layout of SegNet: train, val and test, with label maps in trainannot, valannot and testannot.

Brostow et al. 2009; the 11 classes and the split are those of Badrinarayanan et al. 2017.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stochseg.data.importers.cityscapes import IMAGENET
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import check_labels, stack_labels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.types import DatasetInfo

_CLASSES = (
    ("sky", "#808080"),
    ("building", "#800000"),
    ("pole", "#c0c080"),
    ("road", "#804080"),
    ("pavement", "#3c28de"),
    ("tree", "#808000"),
    ("sign", "#c08080"),
    ("fence", "#404080"),
    ("car", "#400080"),
    ("pedestrian", "#404000"),
    ("bicyclist", "#0080c0"),
)
INFO = DatasetInfo(
    name="camvid",
    num_classes=len(_CLASSES),
    image_channels=3,
    class_names=tuple(name for name, _ in _CLASSES),
    palette=tuple(color for _, color in _CLASSES),
    ignore=11,
    normalization=IMAGENET,
    orientation="upright",
)


@register_importer("camvid")
def camvid(source: Path) -> Plan:
    """Plan the import of SPLIT/FRAME.png and SPLITannot/FRAME.png, folder or zip, of any size."""
    tree = Tree(source)
    names = set(tree.names)
    items = []
    for name, found in tree.matching(r"(?:^|/)(train|val|test)/([^/]+)\.png$"):
        split, frame = found.groups()
        labels = f"{name[: found.start(1)]}{split}annot/{frame}.png"
        if labels not in names:
            raise UserError(f"{tree.where(name)} has no label map: expected {labels}; unpack the annot folders too")
        # Each frame is its own group: the official split divides the sequence 0016E5 between train and val, so a
        # group by sequence would be in two splits, and another split would not compare with published numbers.
        record = (frame, frame, split)
        items.append(Item(*record, partial(_read, tree, name, labels, record)))
    if not items:
        raise UserError(f"{source}: expected CamVid/train/*.png next to CamVid/trainannot/*.png, found none")
    provenance = Provenance(
        kind="camvid",
        source=source.resolve().name,
        license="research use",
        citation="Brostow et al., Semantic object classes in video, Pattern Recognition Letters 30, 2009; "
        "Badrinarayanan et al., SegNet, TPAMI 39, 2017 (classes and split)",
        note="official split; it shares the video sequence 0016E5 between train and val, "
        "so each frame is its own group and validation scores are optimistic",
    )
    return Plan(INFO, provenance, items, max_raters=1)


def _read(tree: Tree, image: str, labels: str, record: tuple[str, str, str]) -> Record:
    pixels, where = tree.picture(image).values, tree.where(labels)
    remedy = "expected the label maps of the SegNet layout, not the color ones of the original release"
    maps = stack_labels([tree.labels(labels)], [where], pixels.shape[:2])
    return Record(*record, pixels, check_labels(maps, INFO, where, remedy))
