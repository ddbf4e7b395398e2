"""Pickles of numpy arrays and plain containers, read without running any code in them."""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.errors import UserError


class _MoreThanArrays(pickle.UnpicklingError):
    """The file refers to something that is not data."""


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes that old protocols store as text; the real function would accept any codec."""
    if encoding != "latin1":
        raise _MoreThanArrays(f"bytes in codec {encoding!r}")
    return codecs.encode(text, "latin1")


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler of dicts, lists, tuples, numbers, strings and numpy arrays.

    Any other name in the file is refused before it is looked up, so that nothing in the file can run.
    """

    def find_class(self, module: str, name: str) -> Any:
        core = getattr(np, "_core", None) or np.core
        # Array pickles refer to private modules of numpy, which moved between its versions 1 and 2.
        place = module.replace("numpy._core.", "numpy.core.")
        if place == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if place == "numpy.core.multiarray" and name in ("_reconstruct", "scalar"):
            return getattr(core.multiarray, name)
        if (place, name) == ("numpy.core.numeric", "_frombuffer"):
            return core.numeric._frombuffer
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise _MoreThanArrays(f"the name {module}.{name}")


def read_arrays(file: Path) -> Any:
    """Read a pickle of arrays; a file with anything else, or a damaged one, is a `UserError`."""
    try:
        with file.open("rb") as stream:
            return ArrayUnpickler(stream).load()
    except _MoreThanArrays as error:
        raise UserError(
            f"{file} contains more than arrays: {error}; refused, none of it was run. "
            "Expected a pickle of numpy arrays, lists, dicts and strings"
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is not a complete pickle ({type(error).__name__}: {error}); download it again"
        ) from None
