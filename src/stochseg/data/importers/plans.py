"""What an import will do: a plan of items, found by names alone, and the importers that make one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from stochseg.config import Config
from stochseg.data.trees import files_below
from stochseg.errors import UserError, unknown_name
from stochseg.types import DatasetInfo


class Provenance(Config):
    """Where the data came from and what one may do with it."""

    kind: str
    source: str
    license: str = "not stated"
    citation: str = ""
    note: str = ""
    renamed_keys: ClassVar = {"licence": "license"}


@dataclass(frozen=True)
class Record:
    """One example as it is stored: raw intensities "h w c", label maps "k h w", and its names."""

    id: str
    group: str
    split: str
    image: np.ndarray
    raters: np.ndarray
    rater_names: tuple[str, ...] = ()
    spacing: tuple[float, float] | None = None


@dataclass(frozen=True)
class Item:
    """An example yet to be read. `read` opens the files and returns raw image, label maps, raters, spacing."""

    id: str
    group: str
    split: str
    read: Callable[[], Record]


Importer = Callable[[Path], "Plan"]
IMPORTERS: dict[str, Importer] = {}


def register_importer(kind: str) -> Callable[[Importer], Importer]:
    """Decorator: `plan_import(kind, source)` finds this function."""

    def add(importer: Importer) -> Importer:
        IMPORTERS[kind] = importer
        return importer

    return add


def plan_import(kind: str, source: Path) -> Plan:
    """What importing `source` as `kind` would do."""
    if kind not in IMPORTERS:
        raise unknown_name("kind of data", kind, IMPORTERS)
    if not source.exists():
        raise UserError(f"{source} does not exist; give the folder or file of the data set")
    return replace(IMPORTERS[kind](source), stamp=_stamp(source))


def _stamp(source: Path) -> str:
    """Names the state of a source by the sizes and times of its files, but for hidden ones, which imports write."""
    digest = hashlib.sha256()
    for file in sorted(files_below(source)) if source.is_dir() else [source]:
        name, facts = file.relative_to(source).as_posix(), file.stat()
        if not any(part.startswith(".") for part in name.split("/")) or file == source:
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True)
class Plan:
    """What an import will do: found by looking at the source's names, before any pixel is read."""

    info: DatasetInfo
    provenance: Provenance
    items: Sequence[Item]
    max_raters: int
    stamp: str = ""
    """Of the source's files as they were: `plan_import` gives it."""

    def fingerprint(self) -> str:
        """Names the plan, so that an interrupted import goes on only with the same one."""
        listing = [(item.id, item.group, item.split) for item in self.items]
        about = [self.info.model_dump(mode="json"), self.provenance.model_dump(mode="json")]
        text = json.dumps([*about, listing, self.max_raters, self.stamp])
        return hashlib.sha256(text.encode()).hexdigest()
