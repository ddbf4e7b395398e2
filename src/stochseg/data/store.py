"""Packed stores: one HDF5 file with all splits of a data set, made for random reads.

    /                            attributes: format, version, info (JSON), provenance (JSON),
                                 sha256 of both and of /examples
    /examples                    one row per example: id, group, split, block and row, count of label maps,
                                 raters (JSON list), spacing, sha256 of the image
    /blocks/HxWxC-TYPE/images    "n h w c", one chunk per example, gzip, with checksums
    /blocks/HxWxC-TYPE/labels    "n k h w", one chunk per example; the places of missing raters are 0 and not read

Images of one size and type share a block. Splits are stored, never drawn at random. Any HDF5 reader can open the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.data.label_maps import check_labels
from stochseg.data.protocol import register_dataset
from stochseg.data.readers.hdf5 import open_hdf5
from stochseg.data.readers.pictures import Pixels
from stochseg.documents import parse_json
from stochseg.errors import UserError, unknown_name
from stochseg.extras import require
from stochseg.files import move
from stochseg.limits import check_memory
from stochseg.locks import locked
from stochseg.types import DatasetInfo, Example, central

FORMAT, VERSION = "stochseg-data", 1
SHARD_EXAMPLES, SHARD_BYTES = 512, 2**28
"""Limits of a shard: an interrupted import loses one shard at most."""
BYTES_PER_EXAMPLE = 4096
"""Room for the index of a store: names, chunks and their tables."""


def _h5py() -> Any:
    return require("h5py", "data", "packed data")


def write_store(plan: Plan, out: Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Read the examples of a plan and write them into a packed store, all or nothing.

    An interrupted import resumes when it is called again; one that fails leaves nothing behind.

    Args:
        plan: The examples, from `plan_import`.
        out: The file to write; it must not exist.
        progress: Called with the examples done so far and their total.

    Returns:
        The path of the store.

    Raises:
        UserError: An example cannot be read or breaks the rules of the format, two examples share an ID, a group is in
            two splits, `out` exists or cannot be written, or another process is writing it.

    Example:
        >>> import tempfile
        >>> from stochseg.data import Store, plan_import
        >>> from stochseg.data.example import write_example_folder
        >>> from stochseg.data.folder import init_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=8, size=16)
        ...     _ = init_folder(root)
        ...     out = write_store(plan_import("folder", root), Path(scratch) / "mine.h5")
        ...     data = Store("train", path=str(out))
        ...     example = data[0]
        >>> example.id, tuple(example.image.shape), example.rater_names
        ('P000-0', (1, 16, 16), ('ana', 'ben'))
    """
    h5py = _h5py()
    scratch = out.with_name(f".{out.name}.import")
    with locked(out.parent, f".{out.name}.lock"):
        if out.exists():  # an import may have been killed after its last step
            shutil.rmtree(scratch, ignore_errors=True)
        _check_plan(plan, out)
        _write(h5py, plan, out, scratch, progress)
    return out


def _write(h5py: Any, plan: Plan, out: Path, scratch: Path, progress: Callable[[int, int], None]) -> None:
    mark = scratch / f"plan-{plan.fingerprint()[:16]}"
    if scratch.exists() and not mark.exists():
        shutil.rmtree(scratch)
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        mark.touch()
        shards: list[Path] = []
        done = 0
        while done < len(plan.items):
            # The name of a shard gives its first example and the first of the next one.
            written = list(scratch.glob(f"shard-{done:07d}-*.h5"))
            shards += written or [_next_shard(plan, done, scratch)]
            done = int(shards[-1].stem.rpartition("-")[2])
            progress(done, len(plan.items))
        part = scratch / "store.part"
        part.write_bytes(_in_memory(lambda handle: None))
        _reserve(part, sum(shard.stat().st_size for shard in shards) + BYTES_PER_EXAMPLE * len(plan.items))
        with h5py.File(part, "r+", libver="latest") as handle:
            _merge(handle, plan, shards)
        move(part, out)
    except Exception as error:  # unlike an interruption, after which the import resumes
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise UserError(f"cannot write {out}: {reason}; free some space or choose another place") from error
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def _next_shard(plan: Plan, start: int, scratch: Path) -> Path:
    """Read the examples from `start` on and write as many as fit into one shard."""
    records: list[Record] = []
    size = 0
    for item in plan.items[start : start + SHARD_EXAMPLES]:
        records.append(_checked(item.read(), item, plan))
        size += records[-1].image.nbytes + records[-1].raters.nbytes
        if size >= SHARD_BYTES:
            break
    file = scratch / f"shard-{start:07d}-{start + len(records):07d}.h5"
    part = file.with_suffix(".part")
    part.write_bytes(_in_memory(lambda handle: _write_shard(handle, plan, records)))
    move(part, file)
    return file


def _in_memory(write: Callable[[Any], None]) -> bytes:
    """Return the content of an HDF5 file. The HDF5 library crashes when it writes to a full disk; Python raises."""
    with _h5py().File("memory", "w", driver="core", backing_store=False, libver="latest") as handle:
        write(handle)
        handle.flush()
        return bytes(handle.id.get_file_image())


def _reserve(file: Path, size: int) -> None:
    """Extend a file on disk, so that a full disk shows now; HDF5 cuts off what it does not need."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)


def _check_plan(plan: Plan, out: Path) -> None:
    if not plan.items:
        raise UserError(
            f"{plan.provenance.source}: nothing to import as {plan.provenance.kind!r}; check the path and the kind"
        )
    if out.exists():
        raise UserError(f"{out} exists; choose another name, or remove it first")
    splits: dict[str, str] = {}
    seen: set[str] = set()
    for item in plan.items:
        if item.id in seen:
            raise UserError(f"two examples have the ID {item.id!r}; IDs must differ")
        seen.add(item.id)
        if splits.setdefault(item.group, item.split) != item.split:
            raise UserError(
                f"group {item.group!r} is in both {splits[item.group]!r} and {item.split!r} (example {item.id!r}); "
                "a patient must not be in two splits"
            )


def _checked(record: Record, item: Item, plan: Plan) -> Record:
    """Return the record itself if it keeps the rules of the format."""
    info, (h, w) = plan.info, record.image.shape[:2]
    if record.image.ndim != 3 or record.image.shape[2] != info.image_channels:
        raise UserError(
            f"{item.id}: expected an image of {info.image_channels} channel(s), got shape {record.image.shape}"
        )
    if not np.isfinite(record.image).all():
        raise UserError(f"{item.id}: the image has NaN or infinite values; replace them first")
    if record.raters.ndim != 3 or len(record.raters) == 0:
        raise UserError(f"{item.id}: the image has no label map; every example needs at least one rater")
    if len(record.raters) > plan.max_raters:
        raise UserError(f"{item.id}: {len(record.raters)} label maps, expected at most {plan.max_raters}")
    if record.raters.shape[1:] != (h, w):
        raise UserError(f"{item.id}: label maps of {record.raters.shape[1:]}, the image is {(h, w)}; they must match")
    check_labels(record.raters, info, item.id, "declare them in the info of the plan")
    return record


# ---------------------------------------------------------------------- writing

_COMPRESSION = {"compression": "gzip", "compression_opts": 6, "fletcher32": True}


def _index_dtype(h5py: Any) -> np.dtype[np.void]:
    text = h5py.string_dtype()
    names = [(key, text) for key in ("id", "group", "split", "block", "raters", "sha256")]
    return np.dtype([*names, ("row", "i8"), ("count", "i4"), ("spacing", "f8", (2,))])


def _write_shard(handle: Any, plan: Plan, records: Sequence[Record]) -> None:
    """Write images and labels by block, and the index; its `row` counts within the shard."""
    label_type = np.uint8 if max(plan.info.num_classes, plan.info.ignore or 0) <= 255 else np.uint16
    blocks: dict[str, list[Record]] = {}
    index = np.empty(len(records), dtype=_index_dtype(_h5py()))
    for i, record in enumerate(records):
        h, w, c = record.image.shape
        block = f"{h}x{w}x{c}-{record.image.dtype.name}"
        members = blocks.setdefault(block, [])
        digest = hashlib.sha256(np.ascontiguousarray(record.image).tobytes()).hexdigest()
        spacing = record.spacing or (np.nan, np.nan)
        names = (record.id, record.group, record.split, block, json.dumps(record.rater_names), digest)
        index[i] = (*names, len(members), len(record.raters), spacing)
        members.append(record)
    for block, members in blocks.items():
        images = np.stack([r.image for r in members])
        labels = np.zeros((len(members), plan.max_raters, *images.shape[1:3]), dtype=label_type)
        for row, record in zip(labels, members, strict=True):
            row[: len(record.raters)] = record.raters
        group = handle.create_group(f"blocks/{block}")
        group.create_dataset("images", data=images, chunks=(1, *images.shape[1:]), **_COMPRESSION)
        group.create_dataset("labels", data=labels, chunks=(1, *labels.shape[1:]), **_COMPRESSION)
    handle.create_dataset("examples", data=index)


def _merge(handle: Any, plan: Plan, shards: Sequence[Path]) -> None:
    """Join all shards; compressed chunks are copied as they are."""
    h5py = _h5py()
    handle.attrs["format"], handle.attrs["version"] = FORMAT, VERSION
    handle.attrs["info"] = plan.info.model_dump_json()
    handle.attrs["provenance"] = plan.provenance.model_dump_json()
    rows = []
    for file in shards:
        with h5py.File(file, "r") as shard:
            index = shard["examples"][()]
            for block, part in shard["blocks"].items():
                start = _append(handle, block, part)
                index["row"][index["block"] == block.encode()] += start
            rows.append(index)
    index = np.concatenate(rows)
    handle.create_dataset("examples", data=index, dtype=_index_dtype(h5py))
    handle.attrs["sha256"] = _digest(handle, index)


def _digest(handle: Any, index: Any) -> str:
    """Checksum of the texts and the index: HDF5 has its own for everything else."""
    digest = hashlib.sha256(f"{handle.attrs['info']}\n{handle.attrs['provenance']}\n".encode())
    for name in index.dtype.names:
        column = index[name]
        digest.update(repr(column.tolist()).encode() if column.dtype.kind == "O" else column.tobytes())
    return digest.hexdigest()


def _append(handle: Any, block: str, part: Any) -> int:
    """Append a block of a shard, and return its first row."""
    start = 0
    for name in ("images", "labels"):
        source = part[name]
        path = f"blocks/{block}/{name}"
        if path not in handle:
            shape, limits = (0, *source.shape[1:]), (None, *source.shape[1:])
            handle.create_dataset(path, shape, source.dtype, maxshape=limits, chunks=source.chunks, **_COMPRESSION)
        target = handle[path]
        start = len(target)
        target.resize(start + len(source), axis=0)
        rest = (0,) * (source.ndim - 1)
        for i in range(len(source)):
            mask, chunk = source.id.read_direct_chunk((i, *rest))
            target.id.write_direct_chunk((start + i, *rest), chunk, mask)
    return start


# ---------------------------------------------------------------------- reading


@register_dataset("store")
class Store:
    """One split of a packed store, read example by example: it may be larger than memory.

    Args:
        split: A split of the store.
        path: The file that `write_store` wrote.
        center: Side in pixels of the central square to read, for images that are centered on their object.

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
        self._blocks: dict[str, tuple[Any, Any]] = {}
        with _damage(self.path), _open_file(self.path) as handle:
            self.info = DatasetInfo.parse(_json(handle, "info", self.path), where=f"{path}: info")
            self.provenance = Provenance.parse(_json(handle, "provenance", self.path), where=f"{path}: provenance")
            index = handle["examples"][()]
            _check_index(handle, index)
            splits = sorted({name.decode() for name in index["split"]})
        if split not in splits:
            raise unknown_name(f"split of {path}", split, splits)
        self.split = split
        self.index = index[index["split"] == split.encode()]
        # Lists, because reading a field of a structured row takes as long as reading a small label map.
        self._places = [self.index[key].tolist() for key in ("block", "row", "count")]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Example:
        row, (height, width) = self.index[i], self.index[i]["spacing"].tolist()
        spacing = None if np.isnan(height) else (height, width)
        with _damage(self.path):
            id, group, names = row["id"].decode(), row["group"].decode(), tuple(json.loads(row["raters"]))
        return Record(id, group, self.split, *self.read(i), names, spacing).example(self.info)

    def read(self, i: int) -> tuple[Pixels, Pixels]:
        """Read the raw image "h w c" and the label maps "k h w" of an example, or their center."""
        block, row, count = (column[i] for column in self._places)
        with _damage(self.path, f"example {self.index[i]['id'].decode(errors='replace')!r}"):
            images, labels = self._block(block.decode())
            rows, columns = (central(length, self.center) for length in images.shape[1:3])
            return images[row, rows, columns], labels[row, :count, rows, columns]

    def _block(self, name: str) -> tuple[Any, Any]:
        """Return images and labels of a block, cached: to look them up takes longer than to read an example."""
        if self._process != os.getpid():  # a handle must not cross a fork
            self._process, self._blocks, self._file = os.getpid(), {}, _open_file(self.path)
        if name not in self._blocks:
            block = self._file[f"blocks/{name}"]
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


def _check_index(handle: Any, index: Any) -> None:
    """Raise an error if the index has changed, or its examples are not in the blocks or too large for memory."""
    if handle.attrs.get("sha256", digest := _digest(handle, index)) != digest:
        raise ValueError("its checksum differs")
    for name in set(index["block"].tolist()):
        block, part = handle["blocks"][name.decode()], index[index["block"] == name]
        images, labels = block["images"], block["labels"]
        (n, height, width, _), (m, k, *size) = images.shape, labels.shape
        if n != m or size != [height, width] or images.dtype.kind not in "buif" or labels.dtype.kind != "u":
            raise ValueError(f"images {images.shape} and labels {labels.shape} do not match")
        if part["row"].min() < 0 or part["row"].max() >= n or part["count"].min() < 1 or part["count"].max() > k:
            raise ValueError(f"the block {name.decode()} has {n} examples and {k} raters, its list has others")
        # An example is read as it is stored, and then becomes float32 and int64.
        check_memory(12 * (math.prod(images.shape[1:]) + math.prod(labels.shape[1:])), f"an example of {name.decode()}")


def store_splits(path: Path) -> list[str]:
    """Return the names of a store's splits."""
    with _damage(path), _open_file(path) as handle:
        return sorted({name.decode() for name in handle["examples"]["split"]})
