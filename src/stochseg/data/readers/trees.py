"""Files below a folder or inside a zip, by name."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from stochseg.data.readers.formats import read_picture
from stochseg.data.readers.pictures import Picture, Pixels
from stochseg.errors import UserError
from stochseg.limits import check_memory


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
        try:
            is_zip = zipfile.is_zipfile(path)
            self._zip = zipfile.ZipFile(path) if is_zip else None
        except Exception as error:  # a damaged directory can fail anywhere, in any way
            raise UserError(f"{path} is a damaged zip file ({error}); copy or download it again") from None
        if not is_zip:
            raise UserError(f"{path}: expected a folder or a zip file (a zip that was cut short is not one)")

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
                if parts.is_absolute() or not parts.parts or ".." in parts.parts or ":" in parts.parts[0]:
                    raise UserError(f"{self.path}: the entry {name!r} points outside the archive; nothing was read")
        hidden = ("__MACOSX", ".")
        return sorted(n for n in found if not any(part.startswith(hidden) for part in n.split("/")))

    @property
    def is_folder(self) -> bool:
        """Whether the files are on disk, not inside a zip."""
        return self._zip is None

    def matching(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the files in whose name the pattern is found, with the match."""
        return ((name, found) for name in self.names if (found := re.search(pattern, name)))

    def read(self, name: str) -> bytes:
        """Read the content of a file."""
        try:
            if self._zip is None:
                check_memory((self.path / name).stat().st_size, self.where(name))
                return (self.path / name).read_bytes()
            entry = self._zip.getinfo(name)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # Python unpacks these without a limit.
                raise UserError(f"{self.where(name)} is packed as bzip2 or LZMA, expected deflate; pack it again")
            check_memory(entry.compress_size + entry.file_size, self.where(name))
            return self._zip.read(entry)  # the stated size at most
        except UserError:
            raise
        except Exception as error:  # a damaged archive can fail anywhere in a decoder, in any way
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
