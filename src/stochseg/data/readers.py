"""Files of a source, from a folder or straight from a zip, and image decoding with errors that name the file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from stochseg.errors import UserError


class Tree:
    """A folder or a zip as a list of names with "/" between parts, relative to its top."""

    def __init__(self, path: Path):
        self.path = path
        if path.is_dir():
            self._zip = None
        elif zipfile.is_zipfile(path):
            self._zip = zipfile.ZipFile(path)
        else:
            raise UserError(f"{path}: expected a folder or a zip file")

    @cached_property
    def names(self) -> list[str]:
        """All files, sorted; junk that archives of Macs carry is left out. A zip whose names leave it is refused."""
        if self._zip is None:
            found = [p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file()]
        else:
            found = [n for n in self._zip.namelist() if not n.endswith("/")]
            for name in found:
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in parts.parts[0]:
                    raise UserError(
                        f"{self.path}: the entry {name!r} points outside the archive; refused, nothing was read"
                    )
        hidden = ("__MACOSX", ".")
        return sorted(n for n in found if not any(part.startswith(hidden) for part in n.split("/")))

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{self.where(name)} cannot be read: {error}") from None

    def image(self, name: str) -> np.ndarray:
        """Decoded pixels, "h w" or "h w c"; palette images give their indices."""
        return decode(self.read(name), self.where(name))

    def where(self, name: str) -> str:
        """The file as a person would look for it."""
        return f"{self.path}{'/' if self._zip is None else ':'}{name}"


def decode(content: bytes, where: str) -> np.ndarray:
    """An image file's pixels."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{where} cannot be read as an image ({error}); it is damaged or of another kind") from None


def stack_labels(maps: Sequence[np.ndarray], names: Sequence[str], size: tuple[int, int]) -> np.ndarray:
    """Label maps "k h w"; one of another size is named."""
    for array, name in zip(maps, names, strict=True):
        if array.shape != size:
            raise UserError(
                f"{name}: expected a label map of {size[0]}×{size[1]} like its image, got shape {array.shape}"
            )
    return np.stack(maps)
