"""A first dataset.yaml and splits.json for a folder of images and label maps, by looking at its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from stochseg.data.folder import (
    DESCRIPTION,
    INIT,
    SPLITS,
    FolderConfig,
    FolderFiles,
    colors_of,
    read_description,
    read_image,
    whole_numbers,
    without_alpha,
)
from stochseg.data.trees import Tree
from stochseg.errors import UserError
from stochseg.types import DEFAULT_PALETTE

LOOKED_AT = 200
"""Files that `init_folder` opens of each kind, evenly spread."""
MOST_CLASSES = 64
"""More label values than this are taken for an image among the label maps."""


def init_folder(root: Path) -> FolderConfig:
    """Look at the files and write a first dataset.yaml and splits.json; one that exists is kept, never overwritten.

    With a dataset.yaml of yours in place, the splits follow its `group`.
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root}: expected a folder with images/ and labels/RATER/")
    description, splits = root / DESCRIPTION, root / SPLITS
    if description.exists() and splits.exists():
        raise UserError(f"{description} and {SPLITS} exist and are not overwritten; delete the one to be made anew")
    files = FolderFiles(Tree(root))
    if not files.images:
        raise UserError(f"{root / 'images'}: expected images such as {root / 'images' / 'ID.png'}, found none")
    files.check(files.images)
    new: dict[Path, str] = {}
    if description.exists():
        config = read_description(files)
    else:
        new[description] = _describe(files, root.resolve().name)
        config = FolderConfig.parse(yaml.safe_load(new[description]), where=str(description))
    if not splits.exists():
        new[splits] = json.dumps(split_by_group(files.images, config), indent=1) + "\n"
    for file, text in new.items():
        _write_new(file, text)
    return config


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}; make its folder writable") from None


def split_by_group(ids: Iterable[str], config: FolderConfig) -> dict[str, list[str]]:
    """Train, val and test by a hash of the patient, about 70, 15 and 15 in a hundred; with 3 patients none is empty."""
    members: dict[str, list[str]] = {}
    for id in sorted(ids):
        members.setdefault(config.group_of(id), []).append(id)
    groups: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for group in sorted(members, key=_digest):
        place = int(_digest(group), 16) % 100
        groups["train" if place < 70 else "val" if place < 85 else "test"].append(group)
    for split in groups:
        fullest = max(groups.values(), key=len)
        if not groups[split] and (len(fullest) > 1 or split == "train"):
            groups[split].append(fullest.pop())
    return {split: sorted(id for group in chosen for id in members[group]) for split, chosen in groups.items()}


def _digest(group: str) -> str:
    return hashlib.sha256(group.encode()).hexdigest()


def _describe(files: FolderFiles, name: str) -> str:
    """The text of a first dataset.yaml."""
    images, labels = _look_at_images(files), _look_at_labels(files)
    return _TEMPLATE.format(
        name=_flow(name or "unnamed"),
        labels_found=labels.found,
        num_classes=labels.num_classes,
        class_names=_flow([f"class {i}" for i in range(labels.num_classes)]),
        palette=_flow(labels.palette),
        ignore=_flow(labels.ignore),
        values=_flow(labels.values),
        images_found=images.found,
        image_channels=len(images.mean),
        mean=_flow(images.mean),
        std=_flow(images.std),
        init=INIT,
    )


def _flow(value: object) -> str:
    """A YAML value on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()


_TEMPLATE = """\
# What a model must know of your data. This first version was guessed from the files: read it once and correct it.

# A name for reports and pictures.
name: {name}

# How many classes there are, the background included; classes are numbered from 0.
# {labels_found}
num_classes: {num_classes}

# A name and a color for each class, in their order. Label maps in color are read by these colors.
class_names: {class_names}
palette: {palette}

# Pixels of this label are void: neither learned nor scored. null: there are none.
ignore: {ignore}

# Which class a value in the files means, such as {{0: 0, 255: 1}}; a color works too: {{"#ffffff": 1}}.
# {{}}: the values are the class numbers.
values: {values}

# Channels of an image: 1 is gray, 3 is color.
# {images_found}
image_channels: {image_channels}

# The network sees (intensity - mean) / std, one number a channel.
normalization:
  mean: {mean}
  std: {std}

# Images of one patient must not be split between train and test. If several images belong together, say how their
# names tell: a regular expression with one pair of brackets around the patient, such as "^(.+)_slice" for
# p01_slice7.png. Then delete splits.json and split anew with: {init} FOLDER
# null: every image stands for itself.
group: null

# What others may do with the data, and whom to cite.
license: not stated
citation: ""
"""


@dataclass(frozen=True)
class _Images:
    found: str
    mean: list[float]
    std: list[float]


def _look_at_images(files: FolderFiles) -> _Images:
    """Channels and intensities. Gray of 8 bits goes to -1..1, all else to mean 0 and deviation 1 as measured."""
    first: tuple[str, int] | None = None
    kinds, sums = set(), []
    for name in _spread(sorted(files.images.values())):
        image = read_image(files.tree, name)[0]
        first = first or (name, image.shape[-1])
        if image.shape[-1] != first[1]:
            raise UserError(
                f"{files.tree.where(name)} has {image.shape[-1]} channel(s), {first[0]} has {first[1]}; "
                "all images of a data set need the same channels"
            )
        kinds.add(image.dtype.name)
        pixels = image.reshape(-1, image.shape[-1]).astype(np.float64)
        sums.append([np.full(first[1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
    found = f"Found {len(files.images)} images: {', '.join(sorted(kinds))}, {first[1]} channel(s)."
    if kinds == {"uint8"} and first[1] == 1:
        return _Images(found, [127.5], [127.5])
    count, total, squares = np.sum(sums, axis=0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return _Images(found, _rounded(mean), _rounded(np.where(std > 0, std, 1)))


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _spread(names: Sequence[str]) -> Sequence[str]:
    return names[:: -(-len(names) // LOOKED_AT)]


@dataclass(frozen=True)
class _Labels:
    found: str
    num_classes: int
    palette: list[str]
    ignore: int | None = None
    values: dict[int, int] = field(default_factory=dict)


def _look_at_labels(files: FolderFiles) -> _Labels:
    names = _spread(sorted(name for id in files.images for name in files.raters(id).values()))
    numbers: set[int] = set()
    shades: set[str] = set()
    for name in names:
        where = files.tree.where(name)
        raw = without_alpha(files.tree.labels(name), where)
        if raw.ndim == 2:
            numbers |= set(np.unique(whole_numbers(raw, where)).tolist())
        else:
            shades |= set(colors_of(raw, where)[0])
        if len(numbers) + len(shades) > MOST_CLASSES:
            raise UserError(
                f"{where}: expected a label map, but it brings the values to {len(numbers) + len(shades)}: is it an "
                f"image, or a JPEG? With that many classes, write {DESCRIPTION} yourself"
            )
        if numbers and shades:
            raise UserError(f"{where} is {'gray' if raw.ndim == 2 else 'in color'}, others are not; use one form")
    seen = f"Found in {len(names)} label maps: {', '.join(map(str, sorted(shades or numbers)))}."
    if shades:
        spare = [color for color in DEFAULT_PALETTE[:2] if color not in shades]
        palette = [*sorted(shades), *spare][: max(2, len(shades))]
        return _Labels(seen, len(palette), palette)
    num_classes, ignore, values = meaning(numbers)
    palette = list(DEFAULT_PALETTE[:num_classes]) if num_classes <= len(DEFAULT_PALETTE) else []
    return _Labels(seen, num_classes, palette, ignore, values)


def meaning(numbers: set[int]) -> tuple[int, int | None, dict[int, int]]:
    """Classes, void label, and class of each value, as label values suggest them.

    0 and 255 are a mask. Numbers that (nearly) count up from 0 are classes, and 255 beside them is void. Others are
    gray levels chosen for the eye, one a class in their order; negative ones are void.
    """
    if numbers | {0} == {0, 255}:
        return 2, None, {0: 0, 255: 1}
    small = numbers - {255}
    if min(small) >= 0 and max(small) < 2 * len(small):
        return max(2, max(small) + 1), 255 if 255 in numbers else None, {}
    levels = sorted(number for number in numbers if number >= 0)
    void = dict.fromkeys(sorted(numbers - set(levels)), 255)
    return max(2, len(levels)), 255 if void else None, {**{v: i for i, v in enumerate(levels)}, **void}
