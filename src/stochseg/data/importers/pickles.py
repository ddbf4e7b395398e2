"""Pickles of numpy arrays and plain containers, read without running any code in them."""

from __future__ import annotations

import codecs
import io
import math
import pickle
import re
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from stochseg.errors import UserError

_PLAIN: dict[int, Any] = pickle._Unpickler.dispatch
"""What the instructions of a pickle do."""


class _MoreThanArrays(pickle.UnpicklingError):
    """The file refers to something that is not data."""


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes that old protocols store as text; the real function would accept any codec."""
    if encoding != "latin1":
        raise _MoreThanArrays(f"bytes in codec {encoding!r}")
    return codecs.encode(text, "latin1")


def _empty_array(*_: Any) -> npt.NDArray[Any]:
    """Return the array that its state then fills; the shape in the file would be allocated as it is."""
    return np.ndarray((0,), np.uint8)


def _scalar(kind: np.dtype[Any], content: bytes) -> Any:
    if len(content) != kind.itemsize:
        raise ValueError(f"{len(content)} bytes for a number of {kind.itemsize}")
    return np.frombuffer(content, kind)[0]


def _from_buffer(content: bytes, kind: np.dtype[Any], shape: tuple[int, ...], order: str) -> npt.NDArray[Any]:
    return np.frombuffer(content, kind).reshape(shape, order="F" if order == "F" else "C")


def _plain_dtype(text: object, *flags: bool) -> np.dtype[Any]:
    if not isinstance(text, str) or not re.fullmatch(r"[<>=|]?[?biufSU]\d{0,4}", text):
        raise _MoreThanArrays(f"numbers of type {text!r}")
    return np.dtype(text, *flags)


class _Stream:
    """A file that refuses to read beyond its end before the memory for it is allocated."""

    def __init__(self, file: BinaryIO):
        self.readline = file.readline
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def read(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise EOFError("it is cut short")
        return self._file.read(count)


class ArrayUnpickler(pickle._Unpickler):
    """Unpickler of dicts, lists, tuples, numbers, strings and numpy arrays.

    Any other name in the file is refused before it is looked up, so that nothing in the file can run. In Python and not
    in C, where a file of ten bytes can ask for a table of 30 GB.
    """

    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        # Array pickles refer to private modules of numpy, which moved between its versions 1 and 2.
        place = module.replace("numpy._core.", "numpy.core.")
        if (place, name) in _NAMES:
            return _NAMES[place, name]
        raise _MoreThanArrays(f"the name {module}.{name}")

    def load_build(self) -> None:
        """Check the state of an array or of the type of its numbers: numpy trusts it, and a wrong one crashes it."""
        target, state = self.stack[-2:]
        if not (_is_order(target, state) if isinstance(target, np.dtype) else _is_content(target, state)):
            raise _MoreThanArrays(f"a state of {type(target).__name__} that arrays do not have")
        _PLAIN[pickle.BUILD[0]](self)

    dispatch: ClassVar[dict[int, Any]] = {**_PLAIN, pickle.BUILD[0]: load_build}


def _is_order(kind: np.dtype[Any], state: object) -> bool:
    """Whether a state sets nothing but the order of bytes."""
    return any(state == each.__reduce__()[2] for each in (kind, kind.newbyteorder()))


def _is_content(target: object, state: object) -> bool:
    """Whether a state is (version, shape, type, Fortran order, bytes), with as many bytes as the shape asks for."""
    if not (isinstance(target, np.ndarray) and isinstance(state, tuple) and len(state) == 5):
        return False
    _, shape, kind, _, content = state
    return (
        isinstance(shape, tuple)
        and all(isinstance(n, int) and n >= 0 for n in shape)
        and isinstance(kind, np.dtype)
        and isinstance(content, (bytes, str))
        and len(content) == math.prod(shape) * kind.itemsize
    )


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,  # an argument of the next one, never called
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "dtype"): _plain_dtype,
    ("_codecs", "encode"): _latin1,
}


def read_arrays(file: Path) -> Any:
    """Read a pickle of arrays; a file with anything else, or a damaged one, is a `UserError`."""
    try:
        with file.open("rb") as stream:
            return ArrayUnpickler(_Stream(stream)).load()
    except _MoreThanArrays as error:
        raise UserError(
            f"{file} contains more than arrays: {error}; refused, none of it was run. "
            "Expected a pickle of numpy arrays, lists, dicts and strings"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(
            f"{file} is not a complete pickle ({type(error).__name__}: {error}); download it again"
        ) from None
