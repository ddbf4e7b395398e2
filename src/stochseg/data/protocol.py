"""What a data set is, and the registry that finds one by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from stochseg.errors import UserError, unknown_name
from stochseg.types import DatasetInfo, Example, Truth


@runtime_checkable
class SegmentationData(Protocol):
    """One split of a data set: indexable, with the facts a model needs."""

    info: DatasetInfo

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


@runtime_checkable
class KnownTruth(Protocol):
    """A data set whose conditional distribution over label maps is known."""

    def truth(self, index: int) -> Truth: ...


def spread(length: int, count: int) -> list[int]:
    """Indices of `count` examples spread evenly over `length`, all of them if there are fewer."""
    count = min(count, length)
    return [i * length // count for i in range(count)]


Opener = Callable[..., SegmentationData]
DATASETS: dict[str, Opener] = {}


def register_dataset(name: str) -> Callable[[Opener], Opener]:
    """Decorator: make `open_dataset(name, split, **options)` find this function or class."""

    def add(opener: Opener) -> Opener:
        DATASETS[name] = opener
        return opener

    return add


def open_dataset(name: str, split: str, **options: Any) -> SegmentationData:
    """Open one split ("train", "val" or "test") of a registered data set."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    opener = DATASETS[name]
    parameters = list(inspect.signature(opener).parameters.values())[1:]
    for key in options:
        if key not in {p.name for p in parameters}:
            raise unknown_name(f"option of data set {name!r}:", key, (p.name for p in parameters))
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in options]
    if missing:
        raise UserError(f"data set {name!r} needs {', '.join(missing)}; give it as data.options.{missing[0]}=...")
    return opener(split, **options)
