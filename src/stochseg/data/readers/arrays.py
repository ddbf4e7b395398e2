"""Arrays of numpy: .npy files, and .npz archives of them. Pickled objects are never read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError
from stochseg.limits import check_memory

SUFFIXES = (".npy", ".npz")
KEYS = ("probabilities", "softmax", "labels", "image", "arr_0")
"""Names of arrays that are looked for in an archive of several."""


def decode_array(content: bytes, where: str) -> Pixels:
    """Read the array in the content of a .npy file or an .npz archive: see `read_array`."""
    try:
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            return _numbers(arrays, where)
        if len(arrays.files) != 1:
            raise UserError(f"{where}: expected one array, got {arrays.files}")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_memory(sum(entry.file_size for entry in archive.infolist()), where)
        return _numbers(np.asarray(arrays[arrays.files[0]]), where)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        raise UserError(f"{where} cannot be read as an array of numpy ({str(error) or type(error).__name__})") from None


def read_array(file: Path, keys: tuple[str, ...] = KEYS) -> tuple[str, Pixels]:
    """Read the array of a .npy file, or one of an archive: its only one, or the first that is named in `keys`.

    Returns:
        The name of the array, "" in a .npy file, and the array.

    Raises:
        UserError: The file is damaged or too large, contains Python objects, or several arrays of other names.
    """
    try:
        if file.suffix.lower() == ".npy":
            values = np.load(file, mmap_mode="r", allow_pickle=False)
            check_memory(values.nbytes, str(file))
            return "", _numbers(np.array(values), str(file))
        with zipfile.ZipFile(file) as archive:
            check_memory(sum(entry.file_size for entry in archive.infolist()), str(file))
        with np.load(file, allow_pickle=False) as arrays:
            known = arrays.files if len(arrays.files) == 1 else [key for key in keys if key in arrays.files]
            if not known:
                raise UserError(f"{file}: expected one array, or one named {', '.join(keys)}, got {arrays.files}")
            return known[0], _numbers(np.asarray(arrays[known[0]]), str(file))
    except (UserError, FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        raise UserError(f"{file} cannot be read as an array of numpy ({str(error) or type(error).__name__})") from None


def _numbers(values: Pixels, where: str) -> Pixels:
    if values.dtype.kind not in "buif" or values.size == 0:
        raise UserError(f"{where}: expected an array of numbers, got shape {values.shape} {values.dtype}")
    return values
