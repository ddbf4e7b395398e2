"""The layout of packed stores.

    /                            attributes: format, version, info (JSON), provenance (JSON),
                                 sha256 of both and of /examples
    /examples                    one row per example: id, group, split, block and row, count of label maps,
                                 raters (JSON list), spacing, sha256 of the image
    /blocks/HxWxC-TYPE/images    "n h w c", one chunk per example, gzip, with checksums
    /blocks/HxWxC-TYPE/labels    "n k h w", one chunk per example; the places of missing raters are 0 and not read

Images of one size and type share a block. Volumes have blocks DxHxWxC-TYPE with "n d h w c" and "n k d h w", and large
ones several chunks, so that a window is read without the rest. Splits are stored, never drawn at random. Any HDF5
reader can open the file.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from stochseg.extras import require

FORMAT, VERSION = "stochseg-data", 1
VOLUME_CHUNK = (16, 256, 256)
"""Largest chunk of a volume: slices, rows, columns."""


def load_h5py() -> Any:
    """Import h5py, or raise an error that names the extra."""
    return require("h5py", "data", "packed data")


def index_dtype(dims: int) -> np.dtype[np.void]:
    """Type of the rows of /examples for examples of `dims` spatial axes."""
    text = load_h5py().string_dtype()
    names = [(key, text) for key in ("id", "group", "split", "block", "raters", "sha256")]
    return np.dtype([*names, ("row", "i8"), ("count", "i4"), ("spacing", "f8", (dims,))])


def chunk_space(space: tuple[int, ...]) -> tuple[int, ...]:
    """Return the spatial size of a chunk: all of an image, a part of a large volume.

    >>> chunk_space((1024, 2048)), chunk_space((300, 512, 128))
    ((1024, 2048), (16, 256, 128))
    """
    if len(space) == 2:
        return space
    return tuple(min(n, limit) for n, limit in zip(space, VOLUME_CHUNK, strict=True))


def digest_index(handle: Any, index: Any) -> str:
    """Checksum of the texts and the index: HDF5 has its own for everything else."""
    digest = hashlib.sha256(f"{handle.attrs['info']}\n{handle.attrs['provenance']}\n".encode())
    for name in index.dtype.names:
        column = index[name]
        digest.update(repr(column.tolist()).encode() if column.dtype.kind == "O" else column.tobytes())
    return digest.hexdigest()
