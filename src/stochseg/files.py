"""Files and folders written all or nothing: first next to their final path, then moved there."""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stochseg.errors import UserError


def sha256(file: Path) -> str:
    """SHA-256 checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while content := handle.read(2**20):
            digest.update(content)
    return digest.hexdigest()


def is_junk(name: str) -> bool:
    """Whether a file of this name was left by a file manager, such as .DS_Store or Thumbs.db."""
    return name.startswith("._") or name in (".DS_Store", ".directory", "Thumbs.db", "desktop.ini")


def write_text(file: Path, text: str) -> Path:
    """Write a text file, and return its path. A reader sees the old text or the new one, never a part."""
    with replaced_file(file) as scratch:
        # The text may quote a path that is not UTF-8.
        scratch.write_text(text, encoding="utf-8", errors="backslashreplace")
    return file


def write_csv(file: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows as CSV, all or nothing; the columns are the keys of all rows, in the order they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (
        replaced_file(file) as scratch,
        scratch.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream,
    ):
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file


@contextmanager
def replaced_file(file: Path) -> Iterator[Path]:
    """Provide a scratch file that replaces `file` at the end of the block, and is removed if the block raises.

    The folder of the file is created.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.part")
    try:
        with _named(file):
            yield scratch
            scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the path to an OSError without one: a write to a full disk does not say to which."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replaced_folder(path: Path, *, ours: Callable[[Path], bool], kind: str) -> Iterator[Path]:
    """Provide a scratch folder that replaces `path` at the end of the block, and is removed if the block raises.

    Args:
        path: the folder to write.
        ours: whether an existing folder may be replaced.
        kind: what such a folder is called in the error.

    Raises:
        UserError: if `path` exists, is not empty and is not `ours`.
    """
    path = Path(os.path.abspath(path))  # "." has no name for a scratch folder next to it
    recover_folder(path)
    if path.exists() and not (path.is_dir() and (next(path.iterdir(), None) is None or ours(path))):
        raise UserError(f"{path} exists and is not {kind}, so it is not replaced; choose the path of a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = scratch.with_name(scratch.name + ".old")
    try:
        with _named(path):
            yield scratch
            _set_default_permissions(scratch)
            if path.exists():
                os.replace(path, old)
            os.replace(scratch, path)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def write_new_folder(parent: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Write a new folder, all or nothing: parent/name, or name-2, name-3, … if others exist. Returns its path.

    write: called with the scratch folder to fill. Processes that do this at the same time get folders of their own.
    """
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
    try:
        write(scratch)
        _set_default_permissions(scratch)
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                os.rename(scratch, path)  # fails if the folder has content
                return path
            except OSError:
                if not path.exists():
                    raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    raise AssertionError("unreachable")


def _set_default_permissions(folder: Path) -> None:
    """Give the folder and its files the permissions of new ones: scratch folders and safetensors start as private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def _left_over(path: Path) -> list[Path]:
    """Old folders of exactly this name, as `replaced_folder` names them."""
    name = re.compile(re.escape(f".{path.name}.") + r"[^.]+\.old")
    return [other for other in path.parent.glob(".*.old") if name.fullmatch(other.name)]


def recover_folder(path: Path) -> None:
    """Restore the old folder if a process was killed between the two moves of `replaced_folder`."""
    if path.exists() or not _left_over(path):
        return
    time.sleep(0.2)  # a living writer needs a moment between its two moves
    for old in _left_over(path):
        if not path.exists():
            with suppress(FileNotFoundError):  # another process of the same run was faster
                os.replace(old, path)
