"""First dataset.yaml and splits.json of a folder, guessed from its images and label maps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from stochseg.data.folder.config import DESCRIPTION, FolderConfig
from stochseg.data.folder.files import INIT, SPLITS, FolderFiles
from stochseg.data.folder.labels import colors_of, whole_numbers, without_alpha
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.types import DEFAULT_PALETTE

MAX_FILES = 200
"""Number of images, and of label maps, that `init_folder` opens, evenly spaced."""
MAX_CLASSES = 64
"""More label values than this suggest an image among the label maps."""


def init_folder(root: Path) -> FolderConfig:
    """Write a first dataset.yaml and splits.json for a folder with images/ and labels/RATER/.

    A file that exists is kept: with your own dataset.yaml in place, the splits follow its `group`.

    Args:
        root: The folder.

    Returns:
        The content of dataset.yaml.

    Raises:
        UserError: Both files exist, or images or label maps are missing, unreadable or inconsistent.

    Example:
        >>> import tempfile
        >>> from stochseg.data.example import write_example_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=8, size=16)
        ...     config = init_folder(root)
        >>> config.num_classes, config.values, config.image_channels
        (2, {0: 0, 255: 1}, 1)
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root}: expected a folder with images/ and labels/RATER/")
    description, splits = root / DESCRIPTION, root / SPLITS
    if description.exists() and splits.exists():
        raise UserError(f"{description} and {SPLITS} exist and are not overwritten; delete the one to write again")
    files = FolderFiles(Tree(root))
    if not files.images:
        raise UserError(f"{root / 'images'}: expected images such as {root / 'images' / 'ID.png'}, found none")
    files.check(files.images)
    new: dict[Path, str] = {}
    if description.exists():
        config = files.config
    else:
        new[description] = _describe(files, root.resolve().name)
        config = FolderConfig.parse(yaml.safe_load(new[description]), where=str(description))
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
    """Split images by a hash of their patient: about 70 % train, 15 % val, 15 % test, none empty if there are three."""
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
    return {split: sorted(id for group in chosen for id in members[group]) for split, chosen in groups.items()}


def _digest(group: str) -> str:
    return hashlib.sha256(group.encode()).hexdigest()


def _describe(files: FolderFiles, name: str) -> str:
    """Write the text of dataset.yaml."""
    images_found, images = _inspect_images(files)
    labels_found, labels = _inspect_labels(files)
    values = {key: _flow(value) for key, value in {"name": name or "unnamed", **labels, **images}.items()}
    return _TEMPLATE.format(labels_found=labels_found, images_found=images_found, init=INIT, **values)


def _flow(value: object) -> str:
    """Format a YAML value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()


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

# Pixels of this label are void: neither learned nor scored. null: there are none.
ignore: {ignore}

# The class of each value in the files, such as {{0: 0, 255: 1}}; a color works too: {{"#ffffff": 1}}.
# {{}}: the values are the class numbers.
values: {values}

# Channels of an image: 1 is gray, 3 is color.
# {images_found}
image_channels: {image_channels}

# Augmentation of training: upright (photographs: mirrored, colors jittered), free (also turned by 90°, 180°, 270°),
# or null: free for gray images, mirrored only for color.
orientation: null

# The network sees (intensity - mean) / std, with one number per channel.
normalization:
  mean: {mean}
  std: {std}

# Images of one patient must not be split between train and test. If several images belong together, give a regular
# expression with one pair of parentheses around the patient in their names, such as "^(.+)_slice" for
# p01_slice7.png. Then delete splits.json and split again with: {init} FOLDER
# null: every image is its own group.
group: null

# The license of the data, and the publication to cite.
license: not stated
citation: ""
"""


def _inspect_images(files: FolderFiles) -> tuple[str, dict[str, object]]:
    """Find channels and normalization: 8-bit gray goes to -1..1, all else to the measured mean 0 and deviation 1."""
    names = _evenly_spaced(sorted(files.images.values()))
    channels = files.read_image(names[0])[0].shape[-1]
    types, sums = set(), []
    for name in names:
        image = files.read_image(name)[0]
        if image.shape[-1] != channels:
            raise UserError(
                f"{files.tree.where(name)} has {image.shape[-1]} channel(s), {names[0]} has {channels}; "
                "all images of a data set need the same channels"
            )
        types.add(image.dtype.name)
        pixels = image.reshape(-1, channels).astype(np.float64)
        sums.append([np.full(channels, len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
    found = f"Found {len(files.images)} images: {', '.join(sorted(types))}, {channels} channel(s)."
    if types == {"uint8"} and channels == 1:
        return found, {"image_channels": 1, "mean": [127.5], "std": [127.5]}
    count, total, squares = np.sum(sums, axis=0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.where(std > 0, std, 1)
    return found, {"image_channels": channels, "mean": _rounded(mean), "std": _rounded(std)}


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _evenly_spaced(names: Sequence[str]) -> Sequence[str]:
    return names[:: -(-len(names) // MAX_FILES)]


def _inspect_labels(files: FolderFiles) -> tuple[str, dict[str, object]]:
    """Find the classes: one per color, or guessed from the label values."""
    names = _evenly_spaced(sorted(name for id in files.images for name in files.raters(id).values()))
    numbers: set[int] = set()
    shades: set[str] = set()
    for name in names:
        where = files.tree.where(name)
        raw = without_alpha(files.tree.labels(name), where)
        if raw.ndim == 2:
            numbers |= set(np.unique(whole_numbers(raw, where)).tolist())
        else:
            shades |= set(colors_of(raw, where)[0])
        count = len(numbers) + len(shades)
        if count > MAX_CLASSES:
            raise UserError(
                f"{where}: expected a label map, but with it there are {count} label values: is it an image, or a "
                f"JPEG? For so many classes, write {DESCRIPTION} yourself"
            )
        if numbers and shades:
            raise UserError(f"{where} is {'gray' if raw.ndim == 2 else 'in color'}, unlike the others; use one form")
    found = f"Found in {len(names)} label maps: {', '.join(sorted(shades) or map(str, sorted(numbers)))}."
    num_classes, ignore, values = guess_classes(numbers) if numbers else (max(2, len(shades)), None, {})
    palette = [*sorted(shades), *(color for color in DEFAULT_PALETTE if color not in shades)][:num_classes]
    return found, {
        "num_classes": num_classes,
        "class_names": [f"class {i}" for i in range(num_classes)],
        "palette": palette if len(palette) == num_classes else [],
        "ignore": ignore,
        "values": values,
    }


def guess_classes(numbers: set[int]) -> tuple[int, int | None, dict[int, int]]:
    """Guess the number of classes, the void label, and the class of each label value.

    0 and 255 are a mask. Numbers that (nearly) count up from 0 are classes, and 255 next to them is void. Others are
    gray levels chosen for display, one per class in their order; negative ones are void.

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
        return max(2, max(small) + 1), 255 if 255 in numbers else None, {}
    levels = sorted(number for number in numbers if number >= 0)
    void = dict.fromkeys(sorted(numbers - set(levels)), 255)
    return max(2, len(levels)), 255 if void else None, {**{v: i for i, v in enumerate(levels)}, **void}
