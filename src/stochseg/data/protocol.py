"""The interface of data sets, and their registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from stochseg.errors import UserError, unknown_name
from stochseg.plugins import Registry
from stochseg.types import DatasetInfo, Example, Truth, Window


@runtime_checkable
class SegmentationData(Protocol):
    """One split of a data set: a sequence of examples, with the facts that a model needs."""

    info: DatasetInfo

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


@runtime_checkable
class KnownTruth(Protocol):
    """A data set whose conditional distribution over label maps is known."""

    def truth(self, index: int) -> Truth:
        """Return the distribution over label maps of one image."""
        ...


@runtime_checkable
class KnownRaters(Protocol):
    """A data set whose distribution over label maps is known for each rater."""

    @property
    def habits(self) -> tuple[float, ...]:
        """The habits of the raters."""
        ...

    def truth(self, index: int, rater: str | None = None) -> Truth:
        """Return the distribution over label maps of one image, of one rater or of any."""
        ...


@runtime_checkable
class SizedData(Protocol):
    """A data set that knows the sizes of its examples, or reads each of them once at most to find out."""

    def space(self, i: int) -> tuple[int, ...]:
        """Return the spatial size of an example."""
        ...


@runtime_checkable
class WindowedData(SizedData, Protocol):
    """A data set that reads a part of an example without the rest, and knows sizes without reading."""

    def patch(self, i: int, window: Window | None = None) -> Example:
        """Read the part of an example between the first and last + 1 pixel of each axis."""
        ...


def space_of(data: SegmentationData, index: int) -> tuple[int, ...]:
    """Return the spatial size of an example; data that do not know it are read."""
    return data.space(index) if isinstance(data, SizedData) else tuple(data[index].image.shape[1:])


def spread(length: int, count: int) -> list[int]:
    """Return `count` evenly spaced indices below `length`, or all of them if there are fewer.

    Args:
        length: Number of items.
        count: Number of indices.

    Returns:
        The indices, rising.

    Example:
        >>> spread(10, 4)
        [0, 2, 5, 7]
    """
    count = min(count, length)
    return [i * length // count for i in range(count)]


def has_single_annotations(data: SegmentationData) -> bool:
    """Whether images have one label map each, judged by up to 16 evenly spaced ones.

    Args:
        data: The split.

    Returns:
        True if so.
    """
    return all(len(data[i].raters) == 1 for i in spread(len(data), 16))


def group_names(data: SegmentationData) -> list[str]:
    """Names of what must stay within one split, usually patients: one per example, its own name if it has none.

    Args:
        data: The split. Its examples are read unless it has `groups`.

    Returns:
        The names.
    """
    known: list[str] | None = getattr(data, "groups", None)
    return known if known is not None else [(each := data[i]).group or each.id for i in range(len(data))]


def pick_examples(data: SegmentationData, count: int) -> list[Example]:
    """Read at most `count` evenly spaced examples of a split.

    Args:
        data: The split.
        count: Number of examples.

    Returns:
        The examples.

    Raises:
        UserError: The split is empty.
    """
    if len(data) == 0:
        raise UserError("the split is empty; choose another")
    return [data[i] for i in spread(len(data), count)]


Opener = Callable[..., SegmentationData]
OpenerT = TypeVar("OpenerT", bound=Opener)

DATASETS: Registry[Opener] = Registry("data set", "stochseg.datasets")
"""Data sets by name: a callable (split, **options), often a class. Packages add theirs as `stochseg.datasets`."""


def register_dataset(name: str) -> Callable[[OpenerT], OpenerT]:
    """Register a function or class, so that `open_dataset(name, split, **options)` finds it.

    Args:
        name: Words joined by hyphens.

    Returns:
        The decorator.

    Example:
        >>> from stochseg.data import DATASETS, Phantoms, open_dataset, register_dataset
        >>> @register_dataset("tiny-phantom")
        ... def tiny_phantom(split, *, count=2):
        ...     return Phantoms(split, size=16, count=count)
        >>> len(open_dataset("tiny-phantom", "val", count=3))
        3
        >>> del DATASETS["tiny-phantom"]
    """

    def add(opener: OpenerT) -> OpenerT:
        DATASETS[name] = opener
        return opener

    return add


def open_dataset(name: str, split: str, **options: Any) -> SegmentationData:
    """Open one split of a registered data set.

    Args:
        name: A name of `DATASETS`, such as "phantom", "store" or "folder".
        split: "train", "val" or "test".
        options: Keyword arguments of the data set.

    Returns:
        The split.

    Raises:
        UserError: The name, the split or an option is unknown, or a required option is missing.

    Example:
        >>> data = open_dataset("phantom", "train", size=32, count=4)
        >>> len(data), tuple(data[0].image.shape), tuple(data[0].raters.shape)
        (4, (1, 32, 32), (4, 32, 32))
    """
    opener = DATASETS.find(name)
    parameters = list(inspect.signature(opener).parameters.values())[1:]
    for key in options:
        if key not in {p.name for p in parameters}:
            raise unknown_name(f"option of data set {name!r}:", key, (p.name for p in parameters))
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in options]
    if missing:
        raise UserError(
            f"data set {name!r} needs {', '.join(missing)}: pass your folder or packed store with --data, or set "
            f"data.options.{missing[0]}=…; `stochseg data example my-data` writes a folder to try"
        )
    return opener(split, **options)
