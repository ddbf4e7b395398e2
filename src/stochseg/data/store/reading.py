"""Reading of packed stores, example by example or window by window."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from stochseg.data.importers.plans import Provenance, Record
from stochseg.data.protocol import register_dataset
from stochseg.data.readers.hdf5 import open_hdf5
from stochseg.data.readers.pictures import Pixels
from stochseg.data.store.layout import FORMAT, VERSION, digest_index
from stochseg.documents import parse_json
from stochseg.errors import UserError, unknown_name
from stochseg.limits import check_memory
from stochseg.types import DatasetInfo, Example, Window, central

_PER_VALUE = 12
"""Bytes per value: an example is read as it is stored, and then becomes float32 and int64."""


@register_dataset("store")
class Store:
    """One split of a packed store, read example by example: it may be larger than memory.

    Args:
        split: A split of the store.
        path: The file that `write_store` wrote.
        center: Side in pixels of the central square to read, for images that are centered on their object; all slices
            of a volume are read.

    Raises:
        UserError: The file is missing, damaged or not a store, or it has no such split.

    See `write_store` for an example.
    """

    def __init__(self, split: str, *, path: str, center: int | None = None) -> None:
        if center is not None and center < 1:
            raise UserError(f"center: expected at least 1 pixel per side, got {center}")
        self.path = Path(path)
        self.center = center
        self._process: int | None = None
        self._file: Any = None
        self._blocks: dict[bytes, tuple[Any, Any]] = {}
        with _damage(self.path), _open_file(self.path) as handle:
            self.info = DatasetInfo.parse(_json(handle, "info", self.path), where=f"{path}: info")
            self.provenance = Provenance.parse(_json(handle, "provenance", self.path), where=f"{path}: provenance")
            index = handle["examples"][()]
            _check_index(handle, index, self.info.spatial_dims)
            splits = sorted({name.decode() for name in index["split"]})
        if split not in splits:
            raise unknown_name(f"split of {path}", split, splits)
        names = {name for text in set(index["raters"].tolist()) for name in parse_json(text, f"{path}: raters")}
        self.info = self.info.model_copy(update={"rater_names": tuple(sorted(names))})
        self.split = split
        self.index = index[index["split"] == split.encode()]
        # Lists, because reading a field of a structured row takes as long as reading a small label map.
        self._places = [self.index[key].tolist() for key in ("block", "row", "count")]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def groups(self) -> list[str]:
        """The group of each example, its own name if it has none, without reading it."""
        pairs = zip(self.index["group"].tolist(), self.index["id"].tolist(), strict=True)
        return [(group or id).decode(errors="surrogateescape") for group, id in pairs]

    def __getitem__(self, i: int) -> Example:
        return self.patch(i)

    def patch(self, i: int, window: Window | None = None) -> Example:
        """Read an example, or a window of it without the rest.

        Args:
            i: Number of the example.
            window: First and last + 1 pixel per axis, within `space(i)`; None: all of it.
        """
        return self.record(i, window).example(self.info)

    def record(self, i: int, window: Window | None = None) -> Record:
        """Read an example, or a window of it, with its intensities as stored."""
        row = self.index[i]
        spacing = None if np.isnan(row["spacing"]).any() else tuple(row["spacing"].tolist())
        with _damage(self.path):
            id, group, names = row["id"].decode(), row["group"].decode(), tuple(json.loads(row["raters"]))
        return Record(id, group, self.split, *self.read(i, window), names, spacing)

    def space(self, i: int) -> tuple[int, ...]:
        """Return the spatial size of an example, or of its center, without reading it."""
        with self._reading(i):
            return tuple(part.stop - part.start for part in self._center(self._places[0][i]))

    def read(self, i: int, window: Window | None = None) -> tuple[Pixels, Pixels]:
        """Read the raw image "*space c" and the label maps "k *space" of an example (or its center), or a window."""
        block, row, count = (column[i] for column in self._places)
        with self._reading(i):
            images, labels = self._block(block)
            place = self._center(block)
            if window is not None:
                place = tuple(_inside(whole, *part) for whole, part in zip(place, window, strict=True))
            if len(place) == 3:  # the size of images was checked when the store was opened
                size = math.prod(part.stop - part.start for part in place)
                check_memory(
                    _PER_VALUE * size * (images.shape[-1] + count), f"{self.path}: a volume of {size:,} voxels"
                )
            return images[(row, *place)], labels[(row, slice(count), *place)]

    def _reading(self, i: int) -> AbstractContextManager[None]:
        return _damage(self.path, f"example {self.index[i]['id'].decode(errors='replace')!r}")

    def _center(self, block: bytes) -> tuple[slice, ...]:
        """Return the part of the examples of a block that is read."""
        *slices, height, width = self._block(block)[0].shape[1:-1]
        return (*(slice(0, n) for n in slices), central(height, self.center), central(width, self.center))

    def _block(self, name: bytes) -> tuple[Any, Any]:
        """Return images and labels of a block, cached: to look them up takes longer than to read an example."""
        if self._process != os.getpid():  # a handle must not cross a fork
            self._process, self._blocks, self._file = os.getpid(), {}, _open_file(self.path)
        if name not in self._blocks:
            block = self._file[f"blocks/{name.decode()}"]
            self._blocks[name] = (block["images"], block["labels"])
        return self._blocks[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_blocks": {}, "_file": None}


def _open_file(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"no data at {path}; make it with: stochseg data import KIND SOURCE {quote(str(path))}")
    handle = open_hdf5(path)
    if handle.attrs.get("format") != FORMAT:
        raise UserError(
            f"{path}: expected format {FORMAT!r}, got {handle.attrs.get('format')!r}; not a stochseg data store"
        )
    if handle.attrs.get("version") != VERSION:
        raise UserError(
            f"{path}: format version {handle.attrs.get('version')}, this stochseg reads {VERSION}; upgrade it"
        )
    return handle


def _inside(whole: slice, first: int, end: int) -> slice:
    """Return the part of an axis from `first` to `end`, both counted from the start of `whole`."""
    length = whole.stop - whole.start
    if not 0 <= first < end <= length:
        raise UserError(f"window {first}..{end}: expected a part of 0..{length}")
    return slice(whole.start + first, whole.start + end)


@contextmanager
def _damage(path: Path, part: str = "the store") -> Iterator[None]:
    """Turn the errors of a damaged store, which are of many kinds, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{path}: {part} is damaged ({reason}); copy or import the store again") from None


def _json(handle: Any, name: str, path: Path) -> Any:
    return parse_json(handle.attrs[name], f"{path}: {name}")


def _check_index(handle: Any, index: Any, dims: int) -> None:
    """Raise an error if the index has changed, or its examples are not in the blocks or too large for memory."""
    if handle.attrs.get("sha256", digest := digest_index(handle, index)) != digest:
        raise ValueError("its checksum differs")
    for name in set(index["block"].tolist()):
        block, part = handle["blocks"][name.decode()], index[index["block"] == name]
        images, labels = block["images"], block["labels"]
        (n, *space, _), (m, k, *size) = images.shape, labels.shape
        fits = n == m and size == space and len(space) == index["spacing"].shape[1] == dims
        if not fits or images.dtype.kind not in "buif" or labels.dtype.kind != "u":
            raise ValueError(f"images {images.shape} and labels {labels.shape} do not match")
        if part["row"].min() < 0 or part["row"].max() >= n or part["count"].min() < 1 or part["count"].max() > k:
            raise ValueError(f"the block {name.decode()} has {n} examples and {k} raters, its list has others")
        # Images are read whole, volumes at least by the chunk.
        parts = [values.shape[1:] if dims == 2 else values.chunks or values.shape[1:] for values in (images, labels)]
        check_memory(_PER_VALUE * sum(map(math.prod, parts)), f"an example of {name.decode()}")


def store_splits(path: Path) -> list[str]:
    """Return the names of a store's splits."""
    with _damage(path), _open_file(path) as handle:
        return sorted({name.decode() for name in handle["examples"]["split"]})
