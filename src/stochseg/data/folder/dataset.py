"""Folder data sets: read directly, or imported into a packed store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from stochseg.data.folder.config import DESCRIPTION, FolderConfig
from stochseg.data.folder.files import INIT, SPLITS, FolderFiles
from stochseg.data.folder.labels import class_map
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import stack_labels
from stochseg.data.protocol import register_dataset
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError, unknown_name
from stochseg.types import Example


class _Source:
    """A described folder: the part that direct reading and the import share."""

    def __init__(self, tree: Tree) -> None:
        self.files = FolderFiles(tree)
        self.config = read_description(self.files)
        self.splits = _read_splits(self.files, self.config)

    def record(self, id: str, split: str) -> Record:
        """Read an example with the label maps of all its raters."""
        tree, config, raters = self.files.tree, self.config, self.files.raters(id)
        image, spacing = read_image(tree, self.files.images[id])
        if image.shape[-1] != config.image_channels:
            where = tree.where(self.files.images[id])
            raise UserError(
                f"{where}: expected {config.image_channels} channel(s) ({DESCRIPTION}), got {image.shape[-1]}"
            )
        maps = [class_map(tree.labels(name), config, tree.where(name)) for name in raters.values()]
        labels = stack_labels(maps, [tree.where(name) for name in raters.values()], image.shape[:2])
        return Record(id, config.group_of(id), split, image, labels, tuple(raters), spacing)


def read_image(tree: Tree, name: str) -> tuple[Pixels, tuple[float, float] | None]:
    """Read raw intensities "h w c" and the pixel spacing."""
    picture = tree.picture(name)
    image = picture.values[..., None] if picture.values.ndim == 2 else picture.values
    if not np.isfinite(image).all():
        raise UserError(f"{tree.where(name)}: the image has NaN or infinite values; replace them first")
    return image, picture.spacing


@register_dataset("folder")
class Folder:
    """One split of a folder of images and label maps, read image by image.

    Args:
        split: A split of splits.json.
        root: The folder with dataset.yaml, splits.json, images/ and labels/.

    Raises:
        UserError: The folder is incomplete, or a split shares images or patients with another.

    Example:
        >>> import tempfile
        >>> from stochseg.data.example import write_example_folder
        >>> from stochseg.data.folder import init_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=8, size=16)
        ...     _ = init_folder(root)
        ...     example = Folder("train", root=str(root))[0]
        >>> example.id, tuple(example.image.shape), example.rater_names
        ('P000-1', (1, 16, 16), ('ana', 'ben', 'chi'))
    """

    def __init__(self, split: str, *, root: str) -> None:
        if not Path(root).is_dir():
            raise UserError(f"{root}: expected a folder with {DESCRIPTION}, {SPLITS}, images/ and labels/")
        self._source = _Source(Tree(Path(root)))
        if split not in self._source.splits:
            raise unknown_name(f"split of {root}", split, self._source.splits)
        self.split = split
        self.ids = self._source.splits[split]
        self.info = self._source.config.info
        self._source.files.check(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        return self._source.record(self.ids[index], self.split).example(self.info)


@register_importer("folder")
def folder(source: Path) -> Plan:
    """Plan the import of a folder or zip with images/, labels/RATER/, dataset.yaml and splits.json."""
    data = _Source(Tree(source))
    rows = [(id, split) for split, ids in data.splits.items() for id in ids]
    data.files.check(id for id, _ in rows)
    config = data.config
    provenance = Provenance(
        kind="folder",
        source=source.resolve().name,
        license=config.license,
        citation=config.citation,
        # Part of the plan's fingerprint: an import must not resume with another mapping.
        note=f"label values to classes: {config.values}" if config.values else "",
    )
    return Plan(
        config.info,
        provenance,
        [Item(id, config.group_of(id), split, partial(data.record, id, split)) for id, split in rows],
        max_raters=max((len(data.files.raters(id)) for id, _ in rows), default=0),
    )


def read_description(files: FolderFiles) -> FolderConfig:
    """Read dataset.yaml."""
    where = files.where(DESCRIPTION)
    hint = f"expected a data set folder with {DESCRIPTION}, {SPLITS}, images/, labels/"
    try:
        values = yaml.safe_load(files.text(DESCRIPTION, hint))
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected keys such as num_classes, got {type(values).__name__}")
    return FolderConfig.parse(values, where=where)


def read_splits(root: Path) -> dict[str, list[str]]:
    """Read the IDs of each split of a folder data set."""
    return _Source(Tree(root)).splits


def find_strays(root: Path) -> list[str]:
    """Report files of a folder data set that are not used: label maps without image, rated images in no split."""
    source = _Source(Tree(root))
    files, found = source.files, []
    for rater, maps in files.labels.items():
        lost = sorted(maps.keys() - files.images.keys())
        if lost:
            found.append(
                f"{len(lost)} label map(s) of rater {rater!r} have no image of the same name, the first {maps[lost[0]]}"
            )
    used = {id for ids in source.splits.values() for id in ids}
    left = sorted(id for id in files.images.keys() - used if files.raters(id))
    if left:
        found.append(f"{len(left)} image(s) with label maps are in no split of {SPLITS}, the first {left[0]!r}")
    return found


def _read_splits(files: FolderFiles, config: FolderConfig) -> dict[str, list[str]]:
    where = files.where(SPLITS)
    try:
        content = json.loads(files.text(SPLITS, "splits are stored with the data, as lists of image names"))
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error}") from None
    splits: dict[str, list[str]] = content if isinstance(content, dict) else {}
    if not splits or not all(
        isinstance(ids, list) and all(isinstance(id, str) for id in ids) for ids in splits.values()
    ):
        raise UserError(f'{where}: expected {{"train": [names], "val": [names], ...}}')
    owner: dict[str, str] = {}
    for split, ids in splits.items():
        for name in ids:
            if name in owner:
                both = f"in both {owner[name]!r} and {split!r}" if owner[name] != split else f"twice in {split!r}"
                raise UserError(f"{where}: image {name!r} is {both}; splits must not share images")
            owner[name] = split
    _check_groups(owner, config, where)
    return splits


def _check_groups(split_of: Mapping[str, str], config: FolderConfig, where: str) -> None:
    owner: dict[str, str] = {}
    for id, split in split_of.items():
        group = config.group_of(id)
        if owner.setdefault(group, split) != split:
            raise UserError(
                f"{where}: group {group!r} is in both {owner[group]!r} and {split!r} (image {id!r}); a patient must "
                f"not be in two splits: move its images, or delete {SPLITS} and split again with: {INIT}"
            )
