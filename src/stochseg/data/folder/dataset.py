"""Folder data sets: read directly, or imported into a packed store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote

from stochseg.data.folder.config import DESCRIPTION, INIT, FolderConfig
from stochseg.data.folder.files import SPLITS, FolderFiles
from stochseg.data.folder.groups import ALONE, find_group, members
from stochseg.data.importers.plans import Item, Plan, Provenance, register_importer
from stochseg.data.protocol import register_dataset
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError, unknown_name
from stochseg.types import Example


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
        ...     root = write_example_folder(Path(scratch) / "mine", count=12, size=16)
        ...     _ = init_folder(root)
        ...     example = Folder("train", root=str(root))[0]
        >>> example.id, tuple(example.image.shape), example.rater_names
        ('P002-0', (1, 16, 16), ('ana', 'ben', 'chi'))
    """

    def __init__(self, split: str, *, root: str) -> None:
        if not Path(root).is_dir():
            raise UserError(f"{root}: expected a folder with {DESCRIPTION}, {SPLITS}, images/ and labels/")
        self._files = FolderFiles(Tree(Path(root)))
        if split not in self._files.splits:
            raise unknown_name(f"split of {root}", split, self._files.splits)
        self.split = split
        self.ids = self._files.splits[split]
        self.info = self._files.info
        self._files.check(self.ids)
        self._spaces: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        example = self._files.record(self.ids[index], self.split).example(self.info)
        self._spaces[index] = tuple(example.raters.shape[1:])
        return example

    def space(self, i: int) -> tuple[int, ...]:
        """Return the spatial size of an example; the first time, it is read."""
        if i not in self._spaces:
            self[i]
        return self._spaces[i]


@register_importer("folder")
def folder(source: Path) -> Plan:
    """Plan the import of a folder or zip with images/, labels/RATER/, dataset.yaml and splits.json."""
    files = FolderFiles(Tree(source))
    config = files.config
    rows = [(id, split) for split, ids in files.splits.items() for id in ids]
    files.check(id for id, _ in rows)
    provenance = Provenance(
        kind="folder",
        source=source.resolve().name,
        license=config.license,
        citation=config.citation,
        # Part of the plan's fingerprint: an import must not resume with another mapping.
        note=f"label values to classes: {config.values}" if config.values else "",
    )
    return Plan(
        files.info,
        provenance,
        [Item(id, config.group_of(id), split, partial(files.record, id, split)) for id, split in rows],
        max_raters=max((len(files.raters(id)) for id, _ in rows), default=0),
    )


def read_splits(root: Path) -> dict[str, list[str]]:
    """Read the IDs of each split of a folder data set."""
    return FolderFiles(Tree(root)).splits


def find_strays(root: Path) -> list[str]:
    """Report files of a folder data set that are not used: label maps without image, rated images in no split."""
    files = FolderFiles(Tree(root))
    used = {id for ids in files.splits.values() for id in ids}
    found = []
    for rater, maps in files.labels.items():
        lost = sorted(maps.keys() - files.images.keys())
        if lost:
            found.append(
                f"{len(lost)} label map(s) of rater {rater!r} have no image of the same name, the first {maps[lost[0]]}"
            )
    left = sorted(id for id in files.images.keys() - used if files.raters(id))
    if left:
        found.append(f"{len(left)} image(s) with label maps are in no split of {SPLITS}, the first {left[0]!r}")
    return found


def find_problems(root: Path, pixels: Sequence[int]) -> list[str]:
    """Report what reading a folder data set image by image does not show.

    These are unused files, images that seem to belong to one patient but are in several splits, and classes that no
    label map has although higher ones exist.

    Args:
        root: The folder.
        pixels: Number of pixels of each class in all splits.
    """
    files = FolderFiles(Tree(root))
    return [*find_strays(root), *_name_leaks(files, root), *_gaps(files.config, pixels)]


def _name_leaks(files: FolderFiles, root: Path) -> list[str]:
    split_of = {id: split for split, ids in files.splits.items() for id in ids}
    pattern = find_group(split_of) if files.config.group is None else None
    if pattern is None:
        return []
    shared = [ids for ids in members(pattern, split_of).values() if len({split_of[id] for id in ids}) > 1]
    if not shared:
        return []
    example = ", ".join(f"{id} ({split})" for split, id in {split_of[id]: id for id in shared[0]}.items())
    return [
        f"{len(shared)} patient(s), by the names of their images, are in several splits: {example}. Set `group: "
        f"'{pattern}'` in {DESCRIPTION}, delete {SPLITS}, and split again with: {INIT} {quote(str(root))}. If these "
        f"images do not belong together, set `group: '{ALONE}'`"
    ]


def _gaps(config: FolderConfig, pixels: Sequence[int]) -> list[str]:
    declared = set(config.values.values())
    last = max((i for i, count in enumerate(pixels) if count), default=0)
    missing = [i for i, count in enumerate(pixels) if not count and i < last and i not in declared]
    if not missing:
        return []
    names = ", ".join(config.names[i] for i in missing)
    return [
        f"no label map has the label(s) {missing} ({names}), but there are higher ones: if the values of the files are "
        f"not the class numbers, map them with `values` in {DESCRIPTION}; if the class exists, list it there, too "
        f"({missing[0]}: {missing[0]})"
    ]
