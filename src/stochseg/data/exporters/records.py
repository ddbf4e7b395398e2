"""All examples of a data set on disk, with intensities as stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stochseg.data.importers.plans import Item, Provenance, Record, plan_import
from stochseg.data.store import Store, store_splits
from stochseg.errors import UserError
from stochseg.types import DatasetInfo

Progress = Callable[[int, int], None]
"""Called with the examples done so far and their total."""


@dataclass(frozen=True)
class Records:
    """The examples of all splits, read when they are needed."""

    info: DatasetInfo
    provenance: Provenance
    items: list[Item]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Record]:
        return (item.read() for item in self.items)


def open_records(path: Path) -> Records:
    """Find the examples of a packed store (.h5) or a folder with dataset.yaml.

    Raises:
        UserError: There is no data at this path, or it is damaged.
    """
    if not path.exists():
        raise UserError(f"no data at {path}; give a packed store (.h5) or a folder with dataset.yaml")
    if path.is_dir():
        plan = plan_import("folder", path)
        return Records(plan.info, plan.provenance, list(plan.items))
    stores = [Store(split, path=str(path)) for split in store_splits(path)]
    items = [
        Item(row["id"].decode(), row["group"].decode(), store.split, partial(store.record, i))
        for store in stores
        for i, row in enumerate(store.index)
    ]
    return Records(stores[0].info, stores[0].provenance, items)
