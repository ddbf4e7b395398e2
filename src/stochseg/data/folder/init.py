"""First dataset.yaml and splits.json of a folder, guessed from its images and label maps."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from stochseg.data.folder.config import DESCRIPTION, INIT, FolderConfig
from stochseg.data.folder.files import SPLITS, FolderFiles
from stochseg.data.folder.groups import ALONE, describe_groups, find_group, members
from stochseg.data.folder.labels import (
    MIN_BLENDS,
    Levels,
    check_exact,
    class_map,
    colors_of,
    count_levels,
    find_blends,
    smoothed,
    whole_numbers,
    without_alpha,
)
from stochseg.data.folder.planes import common_plane, drawn_classes, find_dims, image_planes, label_files, label_planes
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError, unknown_name
from stochseg.types import DEFAULT_PALETTE

MAX_CLASSES = 64
"""More label values than this suggest an image among the label maps."""


def init_folder(root: Path, settings: Mapping[str, Any] | None = None) -> FolderConfig:
    """Write a first dataset.yaml and splits.json for a folder with images/ and labels/RATER/.

    A file that exists is kept: with your own dataset.yaml in place, the splits follow its `group`.

    Args:
        root: The folder.
        settings: Keys of dataset.yaml that are known, such as `values`, `threshold` or `group`; the others are guessed.

    Returns:
        The content of dataset.yaml.

    Raises:
        UserError: Both files exist, or images or label maps are missing, unreadable or inconsistent, or the classes
            are not clear from the label maps.

    Example:
        >>> import tempfile
        >>> from stochseg.data.example import write_example_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=12, size=16)
        ...     config = init_folder(root)
        >>> config.num_classes, config.values, config.image_channels, config.group_of("P002-1")
        (2, {0: 0, 255: 1}, 1, 'P002')
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; expected one with images/ID.* and labels/RATER/ID.*")
    description, splits = root / DESCRIPTION, root / SPLITS
    if description.exists() and splits.exists():
        raise UserError(f"{description} and {SPLITS} exist and are not overwritten; delete the one to write again")
    files = FolderFiles(Tree(root))
    files.check_images()
    files.check(files.images)
    new: dict[Path, str] = {}
    if description.exists():
        if settings:
            raise UserError(f"{description} exists and is not overwritten; set {', '.join(settings)} there")
        config = files.config
    else:
        new[description] = _describe(files, {"name": root.resolve().name or "unnamed"}, settings or {})
        config = FolderConfig.parse(yaml.safe_load(new[description]), where=str(description))
        for name in label_files(files, config.spatial_dims):
            for plane in label_planes(files, name, config.spatial_dims):
                class_map(plane, config, files.tree.where(name))
    if not splits.exists():
        new[splits] = json.dumps(split_by_group(files.images, config), indent=1) + "\n"
    for file, text in new.items():
        try:
            with file.open("x", encoding="utf-8") as handle:
                handle.write(text)
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror or error}; make its folder writable") from None
    return config


def split_by_group(ids: Iterable[str], config: FolderConfig) -> dict[str, list[str]]:
    """Split images by a hash of their patient: about 70 % train, 15 % val, 15 % test, none empty if there are three.

    Two patients are in train and val, a single one is in train.
    """
    members: dict[str, list[str]] = {}
    for id in sorted(ids):
        members.setdefault(config.group_of(id), []).append(id)
    groups: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for group in sorted(members, key=_digest):
        place = int(_digest(group), 16) % 100
        groups["train" if place < 70 else "val" if place < 85 else "test"].append(group)
    for split in groups:
        largest = max(groups.values(), key=len)
        if not groups[split] and (len(largest) > 1 or split == "train"):
            groups[split].append(largest.pop())
    if not groups["val"]:
        groups["val"], groups["test"] = groups["test"], []
    return {split: sorted(id for group in chosen for id in members[group]) for split, chosen in groups.items()}


def _digest(group: str) -> str:
    return hashlib.sha256(group.encode()).hexdigest()


def _describe(files: FolderFiles, known: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Write the text of dataset.yaml."""
    dims = settings["spatial_dims"] if "spatial_dims" in settings else find_dims(files)
    if dims not in (2, 3):
        raise UserError(f"spatial_dims: expected 2 (images) or 3 (volumes), got {dims!r}")
    images_found, images = _inspect_images(files, dims)
    labels_found, labels = _inspect_labels(files, settings, dims)
    group = find_group(files.images)
    if group is not None and "group" not in settings:
        _check_several(members(group, files.images))
    rest: dict[str, object] = {
        "license": "not stated",
        "citation": "",
        "group": group,
        "orientation": None,
        "codes": [],
        "measures": [],
    }
    space = {"spatial_dims": dims, "plane": common_plane(files) if dims == 3 else "axial", "spacing": None}
    values = {**known, **labels, **images, **rest, **space}
    unknown = [key for key in settings if key not in values]
    if unknown:
        raise unknown_name(f"key of {DESCRIPTION}:", unknown[0], values)
    groups_found = "in their names: none" if group is None else describe_groups(group, files.images)
    comments = {"labels_found": labels_found, "images_found": images_found, "groups_found": groups_found}
    texts = {key: _flow(value) for key, value in {**values, **settings}.items()}
    volumes = _VOLUMES.format(**texts) if dims == 3 or space.keys() & settings.keys() else ""
    found = {key: _on_one_line(text) for key, text in comments.items()}
    return _TEMPLATE.format(**found, init=INIT, volumes=volumes, **texts)


def _check_several(groups: Mapping[str, Sequence[str]]) -> None:
    if len(groups) == 1:
        ((group, ids),) = groups.items()
        raise UserError(
            f"by their names, all images are of one patient, {group} ({', '.join(ids[:2])}, …), and must not be split "
            f"between train and val: add images of others. If each image is of another patient: {INIT} FOLDER "
            f"'group={ALONE}'; to put all into train: {INIT} FOLDER 'group=^({re.escape(group)})'"
        )


def _on_one_line(text: str) -> str:
    """Escape what would end a comment or is not allowed in one: names of files and classes may contain anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _flow(value: object) -> str:
    """Format a YAML value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()


_VOLUMES = """
# 3: the images are volumes, 2: they are not.
spatial_dims: {spatial_dims}

# The plane of the slices, which follow each other along the first axis: axial, coronal or sagittal. Volumes are turned
# by their affines. It should be the plane in which most were taken, perpendicular to the largest spacing.
plane: {plane}

# Millimeters between slices, rows and columns to which all volumes are resampled, such as [2.5, 0.7, 0.7].
# null: each volume keeps its own.
spacing: {spacing}
"""

_TEMPLATE = """\
# The facts that a model needs. This first version is a guess from the files: read it once and correct it.

# A name for reports and pictures.
name: {name}

# The number of classes, including the background; classes are numbered from 0.
# {labels_found}
num_classes: {num_classes}

# A name and a color for each class, in order. Label maps in color are read by these colors.
class_names: {class_names}
palette: {palette}

# Codes of the classes for DICOM, such as ["", "SCT:27925004:Nodule"]. []: none.
codes: {codes}

# Ratios of two classes that reports state, such as [vertical cup/disc ratio]. []: none.
measures: {measures}

# Pixels of this label are void: neither learned nor scored. null: there are none.
ignore: {ignore}

# The class of each value in the files, such as {{0: 0, 255: 1}}; a color works too: {{"#ffffff": 1}}.
# {{}}: the values are the class numbers.
values: {values}

# For masks of two classes that were saved as JPEG or smoothed: gray levels from here on, such as 128, are class 1.
# null: label values are exact.
threshold: {threshold}

# Channels of an image: 1 is gray, 3 is color.
# {images_found}
image_channels: {image_channels}
{volumes}
# Augmentation of training: upright (photographs: mirrored, colors jittered), free (also turned by 90°, 180°, 270°),
# or null: free for gray images, mirrored only for color.
orientation: {orientation}

# The network sees (intensity - mean) / std, with one number per channel.
normalization:
  mean: {mean}
  std: {std}

# Images of one patient must not be split between train and test. A regular expression with one pair of parentheses
# around the patient in their names, such as "^(.+)_slice" for p01_slice7.png. If you change it, delete splits.json and
# split again with: {init} FOLDER
# "(.+)": every image is its own group. null: so it is, as far as is known.
# Found {groups_found}.
group: {group}

# The license of the data, and the publication to cite.
license: {license}
citation: {citation}
"""


def _inspect_images(files: FolderFiles, dims: int) -> tuple[str, dict[str, object]]:
    """Find channels and normalization: 8-bit gray goes to -1..1, all else to the measured mean 0 and deviation 1."""
    first, channels = "", 0
    types, sums = set(), []
    for name, image in image_planes(files, dims):
        first, channels = first or name, channels or image.shape[-1]
        if image.shape[-1] != channels:
            raise UserError(
                f"{files.tree.where(name)} has {image.shape[-1]} channel(s), {first} has {channels}; "
                "all images of a data set need the same channels"
            )
        types.add(image.dtype.name)
        pixels = image.reshape(-1, channels).astype(np.float64)
        sums.append([np.full(channels, len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
    kind = "images" if dims == 2 else "volumes"
    found = f"Found {len(files.images)} {kind}: {', '.join(sorted(types))}, {channels} channel(s)."
    if types == {"uint8"} and channels == 1:
        return found, {"image_channels": 1, "mean": [127.5], "std": [127.5]}
    count, total, squares = np.sum(sums, axis=0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.where(std > 0, std, 1)
    return found, {"image_channels": channels, "mean": _rounded(mean), "std": _rounded(std)}


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _inspect_labels(files: FolderFiles, settings: Mapping[str, Any], dims: int) -> tuple[str, dict[str, object]]:
    """Find the classes: one per color, or guessed from the label values, unless the settings say."""
    names = label_files(files, dims)
    if not names:  # all are contours, which name their classes
        drawn = drawn_classes(files)
        known = settings.get("class_names") or ["background", *(name for name in drawn if name != "background")]
        return f"Found in contours: {', '.join(drawn)}.", {**_classes(len(known), settings), "class_names": list(known)}
    if settings.get("threshold") is not None:
        return f"Masks above and below {settings['threshold']}.", _classes(2, settings)
    levels: dict[int, tuple[int, int]] = {}
    colors: dict[str, int] = {}
    dimensions: set[int] = set()
    for file, plane in ((name, plane) for name in names for plane in label_planes(files, name, dims)):
        where = files.tree.where(file)
        check_exact(where)
        raw = without_alpha(plane, where)
        dimensions.add(raw.ndim)
        if len(dimensions) > 1:
            raise UserError(f"{where} is {'gray' if raw.ndim == 2 else 'in color'}, unlike the others; use one form")
        if raw.ndim == 3:
            colors |= {color: sum(bytes.fromhex(color[1:])) for color in colors_of(raw, where)[0]}
        shown = whole_numbers(raw, where) if raw.ndim == 2 else raw.sum(-1, dtype=np.int64)
        for level, (pixels, between) in count_levels(shown).items():
            before = levels.get(level, (0, 0))
            levels[level] = (before[0] + pixels, before[1] + between)
        count = max(len(levels), len(colors))
        if count > MAX_CLASSES:
            raise UserError(
                f"{where}: expected at most {MAX_CLASSES} label values in all maps, got {count} up to this file; is it "
                f"an image, or a smoothed mask? For a mask of two classes: {INIT} FOLDER threshold=128. For more "
                f"classes, write {DESCRIPTION} yourself"
            )
    found = ", ".join(sorted(colors) or map(str, sorted(levels)))
    return f"Found in {len(names)} label maps: {found}.", _guess(levels, colors, settings, str(files.where("labels")))


def _guess(levels: Levels, colors: Mapping[str, int], settings: Mapping[str, Any], where: str) -> dict[str, object]:
    """Guess the keys of dataset.yaml that describe the classes."""
    values, shades = settings.get("values"), sorted(colors)
    if isinstance(values, Mapping) and values:
        classes = [number for number in values.values() if number != settings.get("ignore")]
        return _classes(max([1, *classes]) + 1 if all(isinstance(c, int) for c in classes) else 2, settings, shades)
    blends = find_blends(levels)
    if shades:
        if len(blends) >= MIN_BLENDS:
            raise smoothed(where, [color for color, level in colors.items() if level in blends])
        return _classes(max(2, len(shades)), settings, shades)
    num_classes, void, mapping = guess_classes(set(levels))
    if mapping and blends:
        raise smoothed(where, blends)
    return {**_classes(num_classes, settings), "ignore": void, "values": mapping}


def _classes(num_classes: int, settings: Mapping[str, Any], shades: Sequence[str] = ()) -> dict[str, object]:
    num_classes = settings.get("num_classes", num_classes)
    if not isinstance(num_classes, int) or not 2 <= num_classes <= 2**16:
        raise UserError(f"num_classes: expected a number from 2 to {2**16}, got {num_classes!r}")
    palette = [*shades, *(color for color in DEFAULT_PALETTE if color not in shades)][:num_classes]
    return {
        "num_classes": num_classes,
        "class_names": [f"class {i}" for i in range(num_classes)],
        "palette": palette if len(palette) == num_classes else [],
        "ignore": None,
        "values": {},
        "threshold": None,
    }


def guess_classes(numbers: set[int]) -> tuple[int, int | None, dict[int, int]]:
    """Guess the number of classes, the void label, and the class of each label value.

    0 and 255 are a mask. Numbers that count up from 0 are classes, and 255 next to them is void. Others are gray levels
    chosen for display, one per class in their order; negative ones are void.

    Raises:
        UserError: Numbers nearly count up from 0, so that it is not clear whether a class is missing or has another
            number.

    Example:
        >>> guess_classes({0, 1, 2, 255})
        (3, 255, {})
        >>> guess_classes({0, 100, 200})
        (3, None, {0: 0, 100: 1, 200: 2})
    """
    if numbers | {0} == {0, 255}:
        return 2, None, {0: 0, 255: 1}
    small = numbers - {255}
    if min(small) >= 0 and max(small) < 2 * len(small):
        _check_gaps(small if len(small) > 1 else small | {0}, has_void=255 in numbers)
        return max(2, max(small) + 1), 255 if 255 in numbers else None, {}
    levels = sorted(number for number in numbers if number >= 0)
    void = dict.fromkeys(sorted(numbers - set(levels)), 255)
    return max(2, len(levels)), 255 if void else None, {**{v: i for i, v in enumerate(levels)}, **void}


def _check_gaps(numbers: set[int], *, has_void: bool) -> None:
    missing = sorted(set(range(max(numbers))) - numbers)
    if missing:
        void, ignore = ({255: 255}, "ignore=255 ") if has_void else ({}, "")
        few = {v: i for i, v in enumerate(sorted(numbers))} | void
        whole = {v: v for v in range(max(numbers) + 1)} | void
        raise UserError(
            f"the label maps have the values {sorted(numbers)}, without {missing}; say which classes they are: {INIT} "
            f"FOLDER {ignore}'values={few}', or 'values={whole}' if {missing} are classes that are only absent here"
        )
