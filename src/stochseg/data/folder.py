"""A data set as a folder of PNG files: images, and one folder of label maps a rater.

ROOT/dataset.yaml            name, num_classes, image_channels, class_names, palette, ignore, normalisation
ROOT/splits.json             {"train": [ID, ...], "val": [...], "test": [...]}
ROOT/images/ID.png           raw intensities, grey or colour
ROOT/labels/RATER/ID.png     label values as grey levels or palette indices; a rater may lack an image
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import yaml
from PIL import Image, UnidentifiedImageError

from stochseg.data.protocol import register_dataset
from stochseg.errors import UserError, unknown_name
from stochseg.types import DatasetInfo, Example


@register_dataset("folder")
class Folder:
    """One split of a folder data set, read image by image."""

    def __init__(self, split: str, *, root: str):
        self.root = Path(root)
        self.info = DatasetInfo.parse(_read_yaml(self.root / "dataset.yaml"), where=str(self.root / "dataset.yaml"))
        splits = _read_splits(self.root / "splits.json")
        if split not in splits:
            raise unknown_name(f"split of {self.root}", split, splits)
        self.ids = splits[split]
        self.raters = sorted(p for p in (self.root / "labels").glob("*") if p.is_dir())
        if not self.raters:
            raise UserError(f"{self.root / 'labels'}: expected one folder a rater with label maps, found none")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        name = self.ids[index]
        raw = _read_png(self.root / "images" / f"{name}.png", {"P": "RGB", "1": "L"})
        raw = raw[..., None] if raw.ndim == 2 else raw
        if raw.shape[-1] != self.info.image_channels:
            raise UserError(
                f"{self.root / 'images' / name}.png: expected {self.info.image_channels} channel(s) (dataset.yaml), "
                f"got {raw.shape[-1]}"
            )
        files = [rater / f"{name}.png" for rater in self.raters if (rater / f"{name}.png").exists()]
        if not files:
            raise UserError(
                f"image {name!r} has no label map in {self.root / 'labels'}/*/; add one or drop it from splits.json"
            )
        labels = np.stack([self._labels(file, raw.shape[:2]) for file in files])
        image = self.info.normalisation(torch.from_numpy(raw.astype(np.float32)).permute(2, 0, 1))
        return Example(image, torch.from_numpy(labels), name, group=name)

    def _labels(self, file: Path, size: tuple[int, ...]) -> np.ndarray:
        labels = _read_png(file)
        if labels.shape != size:
            raise UserError(
                f"{file}: expected a label map of {size[0]}×{size[1]} like its image, got shape {labels.shape}"
            )
        labels = labels.astype(np.int64)
        wrong = (labels >= self.info.num_classes) & (labels != (-1 if self.info.ignore is None else self.info.ignore))
        if wrong.any():
            raise UserError(
                f"{file}: expected labels 0..{self.info.num_classes - 1}"
                + (f" or {self.info.ignore} (ignore)" if self.info.ignore is not None else "")
                + f", got {sorted(set(labels[wrong].tolist()))[:5]}; correct the file or num_classes in dataset.yaml"
            )
        return labels


def _read_png(file: Path, converted: Mapping[str, str] = MappingProxyType({})) -> np.ndarray:
    """The values in the file; pictures of a PIL mode named in `converted` are converted first."""
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert(converted.get(image.mode, image.mode)))
    except FileNotFoundError:
        raise UserError(f"{file} is missing; splits.json names it") from None
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from None


def _read_yaml(file: Path) -> dict[str, object]:
    try:
        values = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{file} is missing; expected a data set folder with dataset.yaml, splits.json, images/, labels/"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file}: expected keys such as num_classes, got {type(values).__name__}")
    return values


def _read_splits(file: Path) -> dict[str, list[str]]:
    try:
        splits = json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(f"{file} is missing; splits are stored with the data, as lists of image names") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(splits, dict) or not all(isinstance(ids, list) for ids in splits.values()):
        raise UserError(f'{file}: expected {{"train": [names], "val": [names], ...}}')
    owner: dict[str, str] = {}
    for split, ids in splits.items():
        for name in ids:
            if owner.setdefault(name, split) != split:
                raise UserError(
                    f"{file}: image {name!r} is in both {owner[name]!r} and {split!r}; a split must not share images"
                )
    return splits
