"""Tensors that are kept for later, in memory up to a bound and in a temporary file beyond it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class _Stored:
    """A tensor in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass
class Shelf:
    """A list of tuples of tensors. Once those in memory take `limit` bytes, further ones go to a temporary file.

    >>> shelf = Shelf(limit=8)
    >>> shelf.append((torch.arange(2), torch.tensor([0.5])))
    >>> shelf[0]
    (tensor([0, 1]), tensor([0.5000]))
    """

    limit: int
    _entries: list[tuple[Tensor | _Stored, ...]] = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None

    def append(self, tensors: Sequence[Tensor]) -> None:
        """Keep these tensors, without their gradients if they go to the file."""
        self._bytes += sum(x.nbytes for x in tensors)
        self._entries.append(tuple(tensors) if self._bytes <= self.limit else tuple(map(self._store, tensors)))

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        return tuple(x if isinstance(x, Tensor) else self._read(x) for x in self._entries[number])

    def _store(self, x: Tensor) -> _Stored:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed and removed with the shelf
        offset = self._file.seek(0, 2)
        x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tofile(self._file)
        return _Stored(offset, tuple(x.shape), x.dtype, x.device)

    def _read(self, stored: _Stored) -> Tensor:
        # Read, not mapped: pages of a mapped file would count as memory of the process.
        assert self._file is not None
        self._file.seek(stored.offset)
        content = np.fromfile(self._file, np.uint8, math.prod(stored.shape) * stored.dtype.itemsize)
        return torch.from_numpy(content).view(stored.dtype).reshape(stored.shape).to(stored.device)
