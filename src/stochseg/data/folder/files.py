"""The files of a folder data set: found by their names, described by dataset.yaml, divided by splits.json."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from shlex import quote

import numpy as np

from stochseg.data.folder.config import DESCRIPTION, INIT, FolderConfig
from stochseg.data.folder.labels import class_map
from stochseg.data.folder.volumes import read_volumes
from stochseg.data.importers.plans import Record
from stochseg.data.label_maps import stack_labels
from stochseg.data.readers import geojson
from stochseg.data.readers.geojson import draw_polygons
from stochseg.data.readers.itk import RAW
from stochseg.data.readers.pictures import SUFFIXES, Picture, Pixels, several_images
from stochseg.data.readers.trees import Tree
from stochseg.documents import parse_json, parse_keys
from stochseg.errors import UserError
from stochseg.files import is_junk
from stochseg.types import DatasetInfo

SPLITS = "splits.json"
_EXTENSION = re.compile(r"(\.nii\.gz|\.[a-z]\w*)$", re.IGNORECASE)
"""A DICOM name such as 1.2.840 has none."""


class FolderFiles:
    """Images by ID, and label maps by rater and ID; the values are names in `tree`.

    A folder images/ID of files is one image, a DICOM series, if a rater has a label map ID.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.images: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.series: dict[str, list[str]] = {}
        headers = {name[: -len(".mhd")] for name in tree.names if name.lower().endswith(".mhd")}
        for name in tree.names:
            if not name.startswith(self.top) or is_junk(name.split("/")[-1]):
                continue
            if name.lower().endswith(RAW) and name.rpartition(".")[0] in headers:
                continue
            match name.removeprefix(self.top).split("/"):
                case ["images", *folders, file]:
                    self._add(self.images, "/".join([*folders, file]), name)
                case ["labels", file]:
                    raise UserError(f"{tree.where(name)}: expected it at labels/RATER/{file}; move it there")
                case ["labels", rater, *folders, file]:
                    self._add(self.labels.setdefault(rater, {}), "/".join([*folders, file]), name)
        self._join_series()

    def _join_series(self) -> None:
        """Make one image of the files of a folder that has a label map."""
        labeled = {id for maps in self.labels.values() for id in maps} - self.images.keys()
        for id, name in list(self.images.items()):
            folder = id.rpartition("/")[0]
            if folder in labeled:
                self.series.setdefault(folder, []).append(name)
                del self.images[id]
        for id, names in self.series.items():
            self.images[id] = names[0].rpartition("/")[0]

    @cached_property
    def top(self) -> str:
        """Prefix of all names: the data set may be in a folder of a zip."""
        if self.tree.path.is_dir():
            return ""
        found = [name for name in self.tree.names if name.split("/")[-1] == DESCRIPTION]
        return min(found, key=len, default="").removesuffix(DESCRIPTION)

    def _add(self, files: dict[str, str], file: str, name: str) -> None:
        id = _EXTENSION.sub("", file)
        if id in files:
            raise UserError(f"{self.tree.where(name)} and {files[id]} have the same ID {id!r}; remove or rename one")
        files[id] = name

    def _text(self, file: str, hint: str) -> str:
        """Read dataset.yaml or splits.json; `hint` is for the error if it is missing."""
        if self.top + file not in self.tree.names:
            command = f"{INIT} {quote(str(self.tree.path))}"
            raise UserError(f"{self.where(file)} is missing; {hint}; write a first one with: {command}")
        try:
            return self.tree.read(self.top + file).decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where(file)} is not text in UTF-8: {error}") from None

    def where(self, file: str) -> str:
        """Return the place of a file for error messages."""
        return self.tree.where(self.top + file)

    @cached_property
    def config(self) -> FolderConfig:
        """The content of dataset.yaml."""
        where = self.where(DESCRIPTION)
        hint = f"expected a data set folder with {DESCRIPTION}, {SPLITS}, images/, labels/"
        return FolderConfig.parse(parse_keys(self._text(DESCRIPTION, hint), where, "num_classes"), where=where)

    @property
    def info(self) -> DatasetInfo:
        """The facts of dataset.yaml, and the names of the raters."""
        return self.config.info.model_copy(update={"rater_names": tuple(sorted(self.labels))})

    @cached_property
    def splits(self) -> dict[str, list[str]]:
        """The content of splits.json: image IDs by split. Splits share neither images nor patients."""
        where = self.where(SPLITS)
        content = parse_json(self._text(SPLITS, "splits are stored with the data, as lists of image names"), where)
        splits: dict[str, list[str]] = content if isinstance(content, dict) else {}
        if not splits or not all(
            isinstance(ids, list) and all(isinstance(id, str) for id in ids) for ids in splits.values()
        ):
            raise UserError(f'{where}: expected {{"train": [names], "val": [names], ...}}')
        split_of: dict[str, str] = {}
        for split, ids in splits.items():
            for id in ids:
                if id in split_of:
                    both = f"in both {split_of[id]!r} and {split!r}" if split_of[id] != split else f"twice in {split!r}"
                    raise UserError(f"{where}: image {id!r} is {both}; splits must not share images")
                split_of[id] = split
        owner: dict[str, str] = {}
        for id, split in split_of.items():
            group = self.config.group_of(id)
            if owner.setdefault(group, split) != split:
                raise UserError(
                    f"{where}: group {group!r} is in both {owner[group]!r} and {split!r} (image {id!r}); a patient "
                    f"must not be in two splits: move its images, or delete {SPLITS} and split again with: {INIT}"
                )
        return splits

    def check(self, ids: Iterable[str]) -> None:
        """Raise `UserError` unless all these images exist and have a label map."""
        if not self.labels:
            raise UserError(
                f"{self.where('labels')}: expected one folder of label maps per rater, labels/RATER/ID.*, found none"
                f"{self._rename_hint('the label maps of one rater', 'labels/rater1')}"
            )
        for id in ids:
            if id not in self.images:
                raise UserError(f"image {id!r} of {SPLITS} is missing in {self.where('images')}")
            if not self.raters(id):
                raise UserError(
                    f"image {id!r} has no label map in {self.where('labels')}/*/{id}.*, with the name of the image; "
                    f"add or rename one, or remove the image from images/ and {SPLITS}"
                )

    def check_images(self) -> None:
        """Raise `UserError` unless there are images."""
        if not self.images:
            raise UserError(
                f"{self.where('images')}: expected images such as images/ID.png, found none"
                f"{self._rename_hint('the images', 'images')}"
            )

    def _rename_hint(self, content: str, target: str) -> str:
        """Say how to move the files of folders with names that are not ours, such as masks/."""
        known = {"images", "labels"}
        others = sorted({name.split("/")[0] for name in self.tree.names if "/" in name} - known)
        return f"; if {' or '.join(others)} has {content}, move it to {target}" if others else ""

    def sources(self, id: str) -> list[str]:
        """Return the file of an image, or those of its DICOM series."""
        return self.series.get(id, [self.images[id]])

    def raters(self, id: str) -> dict[str, str]:
        """Return the label maps of an image by rater."""
        return {rater: files[id] for rater, files in self.labels.items() if id in files}

    def read_image(self, name: str, *, oriented: bool = True) -> Picture:
        """Read raw intensities "h w c". oriented: turn NIfTI by its affine."""
        picture = self.tree.picture(name, oriented=oriented)
        image = picture.values[..., None] if picture.values.ndim == 2 else picture.values
        if not np.isfinite(image).all():
            raise UserError(f"{self.tree.where(name)}: the image has NaN or infinite values; replace them first")
        return replace(picture, values=image)

    def record(self, id: str, split: str) -> Record:
        """Read an example with the label maps of all its raters."""
        config, raters = self.config, self.raters(id)
        if config.spatial_dims == 3:
            image, labels, spacing = read_volumes(self.tree, self.sources(id), raters.values(), config)
            return Record(id, config.group_of(id), split, image, labels, tuple(raters), spacing)
        if id in self.series:
            raise several_images(self.tree.where(self.images[id]), f"{len(self.series[id])} files for one label map")
        # A PNG next to NIfTI has its pixels in the order of the array: to turn one of the two would separate them.
        oriented = not any(name.lower().endswith(SUFFIXES) for name in (self.images[id], *raters.values()))
        picture = self.read_image(self.images[id], oriented=oriented)
        image = picture.values
        if image.shape[-1] != config.image_channels:
            where = self.tree.where(self.images[id])
            raise UserError(
                f"{where}: expected {config.image_channels} channel(s) ({DESCRIPTION}), got {image.shape[-1]}"
            )
        maps = [self._read_labels(name, picture, oriented) for name in raters.values()]
        labels = stack_labels(maps, [self.tree.where(name) for name in raters.values()], image.shape[:2])
        return Record(id, config.group_of(id), split, image, labels, tuple(raters), picture.spacing)

    def _read_labels(self, name: str, image: Picture, oriented: bool) -> Pixels:
        """Read the classes of a label map, "h w"."""
        if name.lower().endswith(geojson.SUFFIXES):
            height, width = image.values.shape[:2]
            return draw_polygons(self.tree.read(name), (height, width), self.config.names, self.tree.where(name))
        where, labels = self.tree.where(name), self.tree.label_map(name, oriented=oriented)
        if image.place is not None and labels.place is not None and not labels.place.matches(image.place):
            raise UserError(
                f"{where}: its affine places it elsewhere than its image, so their pixels cannot be matched; save it "
                "with the affine of the image"
            )
        return class_map(labels.values, self.config, where)
