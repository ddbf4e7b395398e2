"""Reading a pickle that one did not make oneself: numpy arrays and plain containers, and nothing else."""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.errors import UserError


class _MoreThanArrays(pickle.UnpicklingError):
    """The file asks for something that is not data."""


def _latin1(text: str, encoding: str) -> bytes:
    """How old protocols spell bytes; the real function could be asked for any codec."""
    if encoding != "latin1":
        raise _MoreThanArrays(f"bytes in codec {encoding!r}")
    return codecs.encode(text, "latin1")


class ArrayUnpickler(pickle.Unpickler):
    """Builds dicts, lists, tuples, numbers, strings and numpy arrays. Any other name in the file is refused before
    it is looked up, so nothing in the file can run."""

    def find_class(self, module: str, name: str) -> Any:
        core = getattr(np, "_core", None) or np.core
        # Array pickles name numpy's private modules, which moved between its versions 1 and 2.
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
    """The content of a pickle of arrays. UserError for anything that is not data, and for a damaged file."""
    try:
        with file.open("rb") as stream:
            return ArrayUnpickler(stream).load()
    except _MoreThanArrays as error:
        raise UserError(
            f"{file} holds more than arrays: {error}; refused, nothing of it was run. "
            "Expected a pickle of numpy arrays, lists, dicts and strings"
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not a whole pickle ({type(error).__name__}: {error}); download it again") from None
