"""Plans of imports: the examples of a source, found before any pixel is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
import torch

from stochseg.config import Config
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.trees import files_below
from stochseg.errors import UserError
from stochseg.plugins import Registry
from stochseg.types import DatasetInfo, Example, Spacing


class Provenance(Config):
    """Origin and license of a data set."""

    kind: str
    source: str
    license: str = "not stated"
    citation: str = ""
    note: str = ""
    renamed_keys: ClassVar[dict[str, str]] = {"licence": "license"}


@dataclass(frozen=True)
class Record:
    """An example as it is stored: raw intensities "*space c" and label maps "k *space"."""

    id: str
    group: str
    split: str
    image: Pixels
    raters: Pixels
    rater_names: tuple[str, ...] = ()
    spacing: Spacing | None = None

    def example(self, info: DatasetInfo) -> Example:
        """Convert to tensors, with the image normalized."""
        image = info.normalization(torch.from_numpy(self.image.astype(np.float32)).movedim(-1, 0))
        raters = torch.from_numpy(self.raters.astype(np.int64))
        return Example(image, raters, self.id, self.group, self.spacing, self.rater_names)


@dataclass(frozen=True)
class Item:
    """An example that is not read yet; `read` opens its files."""

    id: str
    group: str
    split: str
    read: Callable[[], Record]


@dataclass(frozen=True)
class Plan:
    """All examples that an import will write."""

    info: DatasetInfo
    provenance: Provenance
    items: Sequence[Item]
    max_raters: int
    stamp: str = ""
    """Digest of the names, sizes and times of the source's files, set by `plan_import`."""

    def fingerprint(self) -> str:
        """Return a digest of the plan: an interrupted import resumes only if it is the same."""
        listing = [(item.id, item.group, item.split) for item in self.items]
        about = [self.info.model_dump(mode="json"), self.provenance.model_dump(mode="json")]
        text = json.dumps([*about, listing, self.max_raters, self.stamp])
        return hashlib.sha256(text.encode()).hexdigest()


Importer: TypeAlias = Callable[[Path], Plan]
ImporterT = TypeVar("ImporterT", bound=Importer)

IMPORTERS: Registry[Importer] = Registry("kind of data", "stochseg.importers")
"""Importers by kind: functions from a source to a `Plan`. Packages add theirs as `stochseg.importers`."""


def register_importer(kind: str) -> Callable[[ImporterT], ImporterT]:
    """Register a function from a source to a `Plan`, so that `plan_import(kind, source)` finds it."""

    def add(importer: ImporterT) -> ImporterT:
        IMPORTERS[kind] = importer
        return importer

    return add


def plan_import(kind: str, source: Path) -> Plan:
    """Find the examples of a source; `write_store` then imports them.

    Args:
        kind: A name of `IMPORTERS`, such as "folder", "lidc-dicom" or "cityscapes".
        source: The folder or file as it was downloaded.

    Returns:
        The plan: all examples, without pixels.

    Raises:
        UserError: The kind is unknown, or the source is missing or not of that kind.

    Example:
        >>> import tempfile
        >>> from stochseg.data.example import write_example_folder
        >>> from stochseg.data.folder import init_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=8, size=16)
        ...     _ = init_folder(root)
        ...     plan = plan_import("folder", root)
        >>> len(plan.items), plan.max_raters
        (8, 3)
    """
    importer = IMPORTERS.find(kind)
    if not source.exists():
        raise UserError(f"{source} does not exist; give the folder or file of the data set")
    return replace(importer(source), stamp=_stamp(source))


def _stamp(source: Path) -> str:
    """Digest the names, sizes and times of a source's files, except hidden ones, which imports write."""
    digest = hashlib.sha256()
    for file in sorted(files_below(source)) if source.is_dir() else [source]:
        name, facts = file.relative_to(source).as_posix(), file.stat()
        if not any(part.startswith(".") for part in name.split("/")) or file == source:
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
