"""Your own data as a folder: images, and one folder of label maps a rater.

ROOT/dataset.yaml            what the labels mean (see `FolderConfig`); `init_folder` writes a first one
ROOT/splits.json             {"train": [ID, ...], "val": [...], "test": [...]}
ROOT/images/ID.EXT           raw intensities: PNG, JPEG, TIFF (8 or 16 bits, any channels), NIfTI or DICOM slices
ROOT/labels/RATER/ID.EXT     label values as gray levels, palette indices or colors; a rater may lack an image

An image and its label maps share the ID, not the format. NIfTI's first axis is the width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import yaml
from pydantic import Field, model_validator

from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import check_labels, stack_labels
from stochseg.data.protocol import register_dataset
from stochseg.data.trees import Tree
from stochseg.errors import UserError, unknown_name
from stochseg.files import is_junk
from stochseg.types import DatasetInfo, Example

DESCRIPTION, SPLITS = "dataset.yaml", "splits.json"
INIT = "stochseg data init"
"""The command of `init_folder`."""


class FolderConfig(DatasetInfo):
    """dataset.yaml: what a model must know, and how the files say it.

    group: an expression with one pair of brackets, searched in an image's ID, that gives its patient; images of one
    patient must share a split. Without it every image stands for itself.
    values: class of each raw label value, or of a color "#rrggbb", where the two differ.
    """

    group: str | None = None
    values: dict[int | str, int] = Field(default_factory=dict)
    license: str = "not stated"
    renamed_keys: ClassVar = {"licence": "license"}
    citation: str = ""

    @model_validator(mode="after")
    def _readable(self) -> FolderConfig:
        if self.group is not None:
            _check_expression(self.group)
        for color in (*self.palette, *(key for key in self.values if isinstance(key, str))):
            if not re.fullmatch("#[0-9a-fA-F]{6}", color):
                raise ValueError(f"expected a color such as '#e8853c', got {color!r}")
        if len({color.lower() for color in self.palette}) < len(self.palette):
            raise ValueError(f"palette names a color twice: {list(self.palette)}")
        wrong = set(self.values.values()) - {*range(self.num_classes), self.ignore}
        if wrong:
            raise ValueError(f"values leads to {sorted(wrong)}, which are neither classes nor ignore")
        return self

    @property
    def info(self) -> DatasetInfo:
        """What travels with the weights of a model."""
        return DatasetInfo.model_validate(self.model_dump(include=set(DatasetInfo.model_fields)))

    def group_of(self, id: str) -> str:
        """The patient of an image."""
        if self.group is None:
            return id
        found = re.search(self.group, id)
        if found is None or not found[1]:
            raise UserError(f"image {id!r}: `group` {self.group!r} of {DESCRIPTION} finds no patient in its name")
        return found[1]


def _check_expression(text: str) -> None:
    try:
        brackets = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"group {text!r} is not a regular expression: {error}") from None
    if brackets != 1:
        raise ValueError(f"group {text!r} has {brackets} pairs of brackets, expected one around the patient")


# ---------------------------------------------------------------------- finding the files


class FolderFiles:
    """The files of a folder data set, found by their names."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.images: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}
        for name in tree.names:
            if not name.startswith(self.top) or is_junk(name.split("/")[-1]):
                continue
            match name.removeprefix(self.top).split("/"):
                case ["images", file]:
                    self._add(self.images, file, name)
                case ["labels", rater, file]:
                    self._add(self.labels.setdefault(rater, {}), file, name)
                case ["labels", file]:
                    self._misplaced(name, f"labels/RATER/{file}")
                case ["images", *_, file]:
                    self._misplaced(name, f"images/{file}")
                case ["labels", rater, *_, file]:
                    self._misplaced(name, f"labels/{rater}/{file}")

    @cached_property
    def top(self) -> str:
        """A zip may hold the data set in a folder; then all names begin with it."""
        if self.tree.path.is_dir():
            return ""
        found = [name for name in self.tree.names if name.split("/")[-1] == DESCRIPTION]
        return min(found, key=len, default="").removesuffix(DESCRIPTION)

    def _add(self, files: dict[str, str], file: str, name: str) -> None:
        id = re.sub(
            r"(\.nii\.gz|\.[a-z]\w*)$", "", file, flags=re.IGNORECASE
        )  # a name such as 1.2.840 has no extension
        if id in files:
            raise UserError(f"{self.tree.where(name)} and {files[id]} are both called {id!r}; keep one, or rename one")
        files[id] = name

    def _misplaced(self, name: str, expected: str) -> None:
        raise UserError(f"{self.tree.where(name)}: expected it at {expected}; move it there")

    def text(self, file: str, hint: str) -> str:
        """The content of dataset.yaml or splits.json."""
        if self.top + file not in self.tree.names:
            raise UserError(
                f"{self.where(file)} is missing; {hint}; a first one is written by: {INIT} {self.tree.path}"
            )
        try:
            return self.tree.read(self.top + file).decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where(file)} is not text in UTF-8: {error}") from None

    def where(self, file: str) -> str:
        return self.tree.where(self.top + file)

    def check(self, ids: Iterable[str]) -> None:
        """Every image is there and has a label map."""
        if not self.labels:
            raise UserError(f"{self.where('labels')}: expected one folder a rater with label maps, found none")
        for id in ids:
            if id not in self.images:
                raise UserError(f"image {id!r} is missing in {self.where('images')}; {SPLITS} names it")
            if not self.raters(id):
                raise UserError(
                    f"image {id!r} has no label map in {self.where('labels')}/*/{id}.*; "
                    f"add one or drop it from images/ and {SPLITS}"
                )

    def raters(self, id: str) -> dict[str, str]:
        """Who labelled the image, and in which file."""
        return {rater: files[id] for rater, files in self.labels.items() if id in files}


# ---------------------------------------------------------------------- reading


class _Source:
    """A described folder data set: what direct reading and the import share."""

    def __init__(self, tree: Tree):
        self.files = FolderFiles(tree)
        self.config = read_description(self.files)
        self.splits = _read_splits(self.files, self.config)

    def record(self, id: str, split: str) -> Record:
        """One example with the label maps of everybody who drew one."""
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


def read_image(tree: Tree, name: str) -> tuple[np.ndarray, tuple[float, float] | None]:
    """Raw intensities "h w c" and the spacing."""
    picture = tree.picture(name)
    image = picture.values[..., None] if picture.values.ndim == 2 else picture.values
    if not np.isfinite(image).all():
        raise UserError(f"{tree.where(name)}: the image has NaN or infinite values; replace them first")
    return image, picture.spacing


@register_dataset("folder")
class Folder:
    """One split of a folder data set, read image by image."""

    def __init__(self, split: str, *, root: str):
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
        record = self._source.record(self.ids[index], self.split)
        return Example(
            image=self.info.normalization(torch.from_numpy(record.image.astype(np.float32)).permute(2, 0, 1)),
            raters=torch.from_numpy(record.raters.astype(np.int64)),
            id=record.id,
            group=record.group,
            spacing=record.spacing,
            rater_names=record.rater_names,
        )


@register_importer("folder")
def folder(source: Path) -> Plan:
    """Your own data, folder or zip: images/, labels/RATER/, dataset.yaml, splits.json."""
    data = _Source(Tree(source))
    rows = [(id, split) for split, ids in data.splits.items() for id in ids]
    data.files.check(id for id, _ in rows)
    config = data.config
    provenance = Provenance(
        kind="folder",
        source=source.resolve().name,
        license=config.license,
        citation=config.citation,
        # It is part of the plan: an interrupted import must not go on with another mapping.
        note=f"label values to classes: {config.values}" if config.values else "",
    )
    return Plan(
        config.info,
        provenance,
        [Item(id, config.group_of(id), split, partial(data.record, id, split)) for id, split in rows],
        max_raters=max((len(data.files.raters(id)) for id, _ in rows), default=0),
    )


def read_description(files: FolderFiles) -> FolderConfig:
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
    """The splits of a folder data set and the IDs in each."""
    return _Source(Tree(root)).splits


def find_strays(root: Path) -> list[str]:
    """What lies in a folder data set and is not used: label maps without an image, rated images in no split."""
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
        splits = json.loads(files.text(SPLITS, "splits are stored with the data, as lists of image names"))
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error}") from None
    lists = list(splits.values()) if isinstance(splits, dict) else [None]
    if not lists or not all(isinstance(ids, list) and all(isinstance(id, str) for id in ids) for ids in lists):
        raise UserError(f'{where}: expected {{"train": [names], "val": [names], ...}}')
    owner: dict[str, str] = {}
    for split, ids in splits.items():
        for name in ids:
            if name in owner:
                both = f"in both {owner[name]!r} and {split!r}" if owner[name] != split else f"twice in {split!r}"
                raise UserError(f"{where}: image {name!r} is {both}; a split must not share images")
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
                f"not be in two splits: move its images, or delete {SPLITS} and split anew with: {INIT}"
            )


# ---------------------------------------------------------------------- label maps


def class_map(raw: np.ndarray, config: FolderConfig, where: str) -> np.ndarray:
    """Class indices "h w" of label values "h w" or colors "h w c"."""
    raw = without_alpha(raw, where)
    indices = _from_colors(raw, config, where) if raw.ndim == 3 else _from_values(raw, config, where)
    remedy = f"correct the file or num_classes in {DESCRIPTION}"
    if where.lower().endswith((".jpg", ".jpeg")):
        remedy = "JPEG changes label values: save label maps as PNG"
    check_labels(indices, config, where, remedy)
    return indices.astype(np.uint8 if indices.max(initial=0) < 256 else np.uint16)


def without_alpha(raw: np.ndarray, where: str) -> np.ndarray:
    """Without an alpha channel, as long as that says nothing."""
    if raw.ndim == 2 or raw.shape[-1] not in (2, 4) or raw.dtype != np.uint8:
        return raw
    if (raw[..., -1] != 255).any():
        raise UserError(f"{where}: expected a label map without transparency; save it as gray, indexed or RGB")
    return raw[..., 0] if raw.shape[-1] == 2 else raw[..., :3]


def _from_values(raw: np.ndarray, config: FolderConfig, where: str) -> np.ndarray:
    values = whole_numbers(raw, where)
    table = {key: index for key, index in config.values.items() if isinstance(key, int)}
    if not table:
        return values
    found, places = np.unique(values, return_inverse=True)
    unknown = [value for value in found.tolist() if value not in table]
    if unknown:
        raise UserError(
            f"{where}: label values {unknown[:5]} are not in `values` of {DESCRIPTION} ({sorted(table)}); "
            "add them there, or correct the file"
        )
    return np.array([table[value] for value in found.tolist()])[places.reshape(values.shape)]


def whole_numbers(raw: np.ndarray, where: str) -> np.ndarray:
    """Label values as integers; NIfTI often stores them as floats."""
    with np.errstate(invalid="ignore"):
        values = raw.astype(np.int64)
    if (values != raw).any():
        raise UserError(f"{where}: expected whole numbers as labels, got {raw[values != raw].flat[0]}")
    return values


def _from_colors(raw: np.ndarray, config: FolderConfig, where: str) -> np.ndarray:
    table = {color.lower(): index for index, color in enumerate(config.palette)}
    table |= {key.lower(): index for key, index in config.values.items() if isinstance(key, str)}
    if not table:
        raise UserError(
            f"{where}: expected a label map of gray levels or palette indices, got colors; "
            f"list the color of each class as `palette` in {DESCRIPTION}, or save class numbers"
        )
    found, counts, places = colors_of(raw, where)
    unknown = {color: count for color, count in zip(found, counts, strict=True) if color not in table}
    if unknown:
        worst = ", ".join(f"{c} ({n} pixels)" for c, n in sorted(unknown.items(), key=lambda cn: -cn[1])[:5])
        raise UserError(
            f"{where}: {len(unknown)} unknown color(s): {worst}; add them to `palette` (a class) or `values` "
            f"(such as '{next(iter(unknown))}': 0) in {DESCRIPTION}, or correct the file"
        )
    return np.array([table[color] for color in found])[places]


def colors_of(raw: np.ndarray, where: str) -> tuple[list[str], list[int], np.ndarray]:
    """The colors "#rrggbb" of an RGB picture, their pixel counts, and the place in the list of each pixel "h w"."""
    if raw.dtype != np.uint8 or raw.shape[-1] != 3:
        raise UserError(f"{where}: expected a label map in gray or RGB of 8 bits, got shape {raw.shape} {raw.dtype}")
    codes = (raw.astype(np.int64) << np.array([16, 8, 0])).sum(-1)
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return [f"#{code:06x}" for code in found.tolist()], counts.tolist(), places.reshape(codes.shape)
