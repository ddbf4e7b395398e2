"""Writing of packed stores, all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data.importers.plans import Item, Plan, Record
from stochseg.data.label_maps import check_labels
from stochseg.data.store.layout import FORMAT, VERSION, chunk_space, digest_index, index_dtype, load_h5py
from stochseg.errors import UserError
from stochseg.files import move
from stochseg.locks import locked

SHARD_EXAMPLES, SHARD_BYTES = 512, 2**28
"""Limits of a shard: an interrupted import loses one shard at most."""
BYTES_PER_EXAMPLE = 4096
"""Room for the index of a store: names, chunks and their tables."""


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
    h5py = load_h5py()
    if not out.name or out.is_dir():
        raise UserError(f"expected a file to write, such as data/mine.h5, got the folder {out}")
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
    content = BytesIO()  # versions before 2.0 write a wrong checksum into the image of an open file
    with load_h5py().File(content, "w", libver="latest") as handle:
        write(handle)
    return content.getvalue()


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
    info, (*space, channels) = plan.info, record.image.shape
    if len(space) != info.spatial_dims or channels != info.image_channels:
        kind = "an image" if info.spatial_dims == 2 else "a volume"
        raise UserError(
            f"{item.id}: expected {kind} of {info.image_channels} channel(s), got shape {record.image.shape}"
        )
    if not np.isfinite(record.image).all():
        raise UserError(f"{item.id}: the image has NaN or infinite values; replace them first")
    if record.raters.ndim != info.spatial_dims + 1 or len(record.raters) == 0:
        raise UserError(f"{item.id}: the image has no label map; every example needs at least one rater")
    if len(record.raters) > plan.max_raters:
        raise UserError(f"{item.id}: {len(record.raters)} label maps, expected at most {plan.max_raters}")
    if record.raters.shape[1:] != tuple(space):
        raise UserError(
            f"{item.id}: label maps of {record.raters.shape[1:]}, the image is {tuple(space)}; they must match"
        )
    check_labels(record.raters, info, item.id, "declare them in the info of the plan")
    return record


# ---------------------------------------------------------------------- writing

_COMPRESSION = {"compression": "gzip", "compression_opts": 6, "fletcher32": True}


def _write_shard(handle: Any, plan: Plan, records: Sequence[Record]) -> None:
    """Write images and labels by block, and the index; its `row` counts within the shard."""
    label_type = np.uint8 if max(plan.info.num_classes, plan.info.ignore or 0) <= 255 else np.uint16
    blocks: dict[str, list[Record]] = {}
    dims = plan.info.spatial_dims
    index = np.empty(len(records), dtype=index_dtype(dims))
    for i, record in enumerate(records):
        block = f"{'x'.join(map(str, record.image.shape))}-{record.image.dtype.name}"
        members = blocks.setdefault(block, [])
        digest = hashlib.sha256(np.ascontiguousarray(record.image).tobytes()).hexdigest()
        spacing = record.spacing or (np.nan,) * dims
        names = (record.id, record.group, record.split, block, json.dumps(record.rater_names), digest)
        index[i] = (*names, len(members), len(record.raters), spacing)
        members.append(record)
    for block, members in blocks.items():
        images = np.stack([r.image for r in members])
        labels = np.zeros((len(members), plan.max_raters, *images.shape[1:-1]), dtype=label_type)
        for row, record in zip(labels, members, strict=True):
            row[: len(record.raters)] = record.raters
        group = handle.create_group(f"blocks/{block}")
        chunk = chunk_space(images.shape[1:-1])
        group.create_dataset("images", data=images, chunks=(1, *chunk, images.shape[-1]), **_COMPRESSION)
        group.create_dataset("labels", data=labels, chunks=(1, plan.max_raters, *chunk), **_COMPRESSION)
    handle.create_dataset("examples", data=index)


def _merge(handle: Any, plan: Plan, shards: Sequence[Path]) -> None:
    """Join all shards; compressed chunks are copied as they are."""
    handle.attrs["format"], handle.attrs["version"] = FORMAT, VERSION
    handle.attrs["info"] = plan.info.model_dump_json()
    handle.attrs["provenance"] = plan.provenance.model_dump_json()
    rows = []
    for file in shards:
        with load_h5py().File(file, "r") as shard:
            index = shard["examples"][()]
            for block, part in shard["blocks"].items():
                start = _append(handle, block, part)
                index["row"][index["block"] == block.encode()] += start
            rows.append(index)
    index = np.concatenate(rows)
    handle.create_dataset("examples", data=index, dtype=index_dtype(plan.info.spatial_dims))
    handle.attrs["sha256"] = digest_index(handle, index)


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
        for i, *rest in product(*(range(0, n, step) for n, step in zip(source.shape, source.chunks, strict=True))):
            mask, chunk = source.id.read_direct_chunk((i, *rest))
            target.id.write_direct_chunk((start + i, *rest), chunk, mask)
    return start
