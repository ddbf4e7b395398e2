"""Files and folders written all or nothing, also if the power fails: next to their path, synced, then moved there.

A scratch file or folder carries the process that writes it in its name, `.NAME.TAG.part`, and `.NAME.TAG.old` is the
folder that is being replaced; the next writer removes those of dead processes.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import itertools
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from stochseg.errors import UserError
from stochseg.owners import Owner, current_owner

log = logging.getLogger(__name__)
MANIFEST = "checksums.sha256"
"""Checksums of all files of a folder, in the format of the program sha256sum; the last line protects the others."""
_SCRATCH = re.compile(r"\.(?P<name>.+)\.(?P<tag>[0-9a-f]+-[0-9a-f]+-[0-9a-f]+)-[0-9a-f]{4}\.(?P<kind>part|old)")


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


# ---------------------------------------------------------------------- all or nothing


@contextmanager
def replaced_file(file: Path) -> Iterator[Path]:
    """Provide a scratch file that replaces `file` at the end of the block, and is removed if the block raises.

    The folder of the file is created.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(file.parent, os.getpid())
    scratch = scratch_path(file)
    try:
        with _named(file):
            yield scratch
            move(scratch, file)
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
def replaced_folder(path: Path, *, ours: Callable[[Path], bool], kind: str, keep: int = 1) -> Iterator[Path]:
    """Provide a scratch folder that replaces `path` at the end of the block, and is removed if the block raises.

    Args:
        path: the folder to write.
        ours: whether an existing folder may be replaced; it may raise a UserError that says why not.
        kind: what such a folder is called in the error.
        keep: how many to keep: the new one, and the former ones as PATH-1, PATH-2, …

    Raises:
        UserError: if `path` exists, is not empty and is not `ours`.
    """
    path = Path(os.path.abspath(path))  # "." has no name for a scratch folder next to it
    check_replaceable(path, ours=ours, kind=kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(path.parent, os.getpid())
    scratch = scratch_path(path)
    scratch.mkdir()
    names = [path, *(former(path, i) for i in range(1, keep))]
    old = scratch_path(names[-1], "old")
    present = list(takewhile(Path.exists, names))
    moves = list(zip(present, [*names[1:], old], strict=False))
    try:
        with _named(path):
            yield scratch
            _set_default_permissions(scratch)
            sync_tree(scratch)
            for source, target in reversed(moves):
                os.replace(source, target)
            os.replace(scratch, path)
            sync(path.parent)
    finally:
        for source, target in moves:
            if target.exists() and not source.exists():
                os.replace(target, source)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def write_new_folder(parent: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Write a new folder, all or nothing: parent/name, or name-2, name-3, … if others exist. Returns its path.

    write: called with the scratch folder to fill. Processes that do this at the same time get folders of their own.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(parent, os.getpid())
    scratch = scratch_path(parent / name)
    scratch.mkdir()
    try:
        write(scratch)
        _set_default_permissions(scratch)
        sync_tree(scratch)
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                os.rename(scratch, path)  # fails if the folder has content
                sync(parent)
                return path
            except OSError:
                if not path.exists():
                    raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    raise AssertionError("unreachable")


def former(path: Path, i: int) -> Path:
    """The i-th former version of a folder that `replaced_folder` keeps."""
    return path.with_name(f"{path.name}-{i}")


def check_replaceable(path: Path, *, ours: Callable[[Path], bool], kind: str) -> None:
    """Raise a UserError if `replaced_folder` would refuse to replace what is at `path`."""
    if path.exists() and not (path.is_dir() and (next(path.iterdir(), None) is None or ours(path))):
        raise UserError(
            f"{path} exists and is not {kind}, so it is not replaced; choose the path of a new folder, or move other "
            "files out of it"
        )


def _set_default_permissions(folder: Path) -> None:
    """Give the folder and its files the permissions of new ones: files of safetensors start as private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def move(source: Path, target: Path) -> None:
    """Move a complete file to its path, so that a loss of power leaves the old file or the whole new one."""
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write a file, or the list of names in a folder, from the memory of the system to the disk."""
    is_folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs files opened for writing only
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:  # Windows and some network shares do not sync folders
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def sync_tree(folder: Path) -> None:
    """Sync a folder with everything in it."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


# ---------------------------------------------------------------------- scratch of dead processes


def scratch_path(path: Path, kind: str = "part") -> Path:
    """A new name next to `path` that carries this process."""
    name = os.fsdecode(os.fsencode(path.name)[:200])  # names have at most 255 bytes
    return path.with_name(f".{name}.{current_owner().tag}-{secrets.token_hex(2)}.{kind}")


def sweep(folder: Path) -> None:
    """Remove the scratch files of dead processes of this machine; restore a folder that was being replaced."""
    for path in folder.glob(".*"):
        found = _SCRATCH.fullmatch(path.name)
        owner = found and Owner.parse(found["tag"])
        if not found or not owner or owner.is_alive() is not False:
            continue
        target = path.with_name(found["name"])
        log.debug("cleaning up after a dead process: %s", path)
        with suppress(OSError):  # another process was faster, or the folder is read-only
            if found["kind"] == "old" and not target.exists():
                os.replace(path, target)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@lru_cache(maxsize=1024)
def _sweep_once(folder: Path, process: int) -> None:
    """Sweep a folder, once per process: it may contain a million results."""
    sweep(folder)


def find_folder(path: Path) -> Path:
    """The folder at `path`, or the one that a writer has moved aside to replace it; nothing is written."""
    if path.exists():
        return path
    if moved := _moved_aside(path):
        time.sleep(0.2)  # a living writer needs a moment between its moves
        return path if path.exists() else moved
    return path


def _moved_aside(path: Path) -> Path | None:
    name = re.compile(re.escape(f".{path.name}.") + r"[^.]+\.old")
    return next((other for other in path.parent.glob(".*.old") if name.fullmatch(other.name)), None)


def recover_folder(path: Path) -> None:
    """Move the folder back that a killed process had moved aside to replace it. For the only writer of the folder."""
    found = find_folder(path)
    if found != path:
        with suppress(FileNotFoundError):
            os.replace(found, path)


# ---------------------------------------------------------------------- checksums


def write_manifest(folder: Path) -> None:
    """Write the checksums of all files below a folder into it."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = "".join(f"{sha256(folder / name)}  {name}\n" for name in files if name != MANIFEST)
    (folder / MANIFEST).write_text(_protected(lines), encoding="utf-8", newline="\n")


def verify_manifest(folder: Path, only: Collection[str] = ()) -> None:
    """Compare the files of a folder with their checksums. Folders of older versions have none and pass.

    Args:
        folder: with the file `MANIFEST`.
        only: names of the files to compare; default: all.

    Raises:
        UserError: if a file differs or is missing, or the checksums themselves are damaged.
    """
    file = folder / MANIFEST
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    lines = content.decode("utf-8", "replace").rpartition("# ")[0]
    if content != _protected(lines).encode():
        raise UserError(f"{file} is damaged; restore the whole folder from a copy")
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines.splitlines())}
    for name in only or expected:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing; the folder is incomplete: restore it from a copy")
        if sha256(folder / name) != expected.get(name):
            raise UserError(
                f"{folder / name} is damaged: its checksum differs from {MANIFEST}; restore the folder from a copy, or "
                f"delete {MANIFEST} if you changed the file on purpose"
            )


def _protected(lines: str) -> str:
    return f"{lines}# {hashlib.sha256(lines.encode()).hexdigest()}\n"
