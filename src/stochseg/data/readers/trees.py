"""Files below a folder or inside a zip, by name."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from stochseg.data.readers.formats import read_picture
from stochseg.data.readers.pictures import Picture, Pixels
from stochseg.errors import UserError


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder. Links to folders are followed, except those that lead back up."""
    for here, folders, files in os.walk(folder, followlinks=True):
        real = Path(here).resolve()
        folders[:] = [name for name in folders if not real.is_relative_to((Path(here) / name).resolve())]
        yield from (file for name in files if (file := Path(here) / name).is_file())


class Tree:
    """A folder or a zip as a list of file names, relative to its top and separated by "/"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            return
        if not zipfile.is_zipfile(path):
            raise UserError(f"{path}: expected a folder or a zip file (a zip that was cut short is not one)")
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise UserError(f"{path} is a damaged zip file ({error}); copy or download it again") from None

    @cached_property
    def names(self) -> list[str]:
        """All files, sorted, without hidden ones and the extra files of macOS archives.

        Raises:
            UserError: An entry of the zip points outside it.
        """
        if self._zip is None:
            found = [p.relative_to(self.path).as_posix() for p in files_below(self.path)]
        else:
            found = [n for n in self._zip.namelist() if not n.endswith("/")]
            for name in found:
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in parts.parts[0]:
                    raise UserError(f"{self.path}: the entry {name!r} points outside the archive; nothing was read")
        hidden = ("__MACOSX", ".")
        return sorted(n for n in found if not any(part.startswith(hidden) for part in n.split("/")))

    def matching(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the files in whose name the pattern is found, with the match."""
        return ((name, found) for name in self.names if (found := re.search(pattern, name)))

    def read(self, name: str) -> bytes:
        """Read the content of a file."""
        try:
            return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)
        except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{self.where(name)} cannot be read: {error}") from None

    def picture(self, name: str, *, oriented: bool = True) -> Picture:
        """Read an image of any supported format; palette images give their colors. oriented: turn NIfTI by its
        affine."""
        return read_picture(self.read(name), self.where(name), "colors", oriented=oriented)

    def labels(self, name: str) -> Pixels:
        """Read a label map of any supported format as it is stored: "h w", or "h w c" if labels are colors."""
        return self.label_map(name).values

    def label_map(self, name: str, *, oriented: bool = True) -> Picture:
        """Read a label map as `labels`, with its place. oriented: turn NIfTI by its affine."""
        return read_picture(self.read(name), self.where(name), "indices", oriented=oriented)

    def where(self, name: str) -> str:
        """Return the place of a file for error messages."""
        return f"{self.path}{'/' if self._zip is None else ':'}{name}"
