"""Locks: one writer per run, per folder of predictions and per import. Readers need none.

A lock is a file that names its process. The lock of a dead process of this machine is taken over. Whether a process
of another machine runs is not visible from here, so each holder renews the time of its lock, and a lock that was not
renewed for `STALE_SECONDS` is taken over.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stochseg.errors import UserError
from stochseg.files import scratch_path, sweep
from stochseg.owners import Owner, current_owner

LOCK = ".lock"
"""Name of the lock in a folder."""
RENEW_SECONDS, STALE_SECONDS = 30, 300
PATIENCE = STALE_SECONDS + 2 * RENEW_SECONDS
"""Seconds after which the lock of any dead process can be taken over."""


@contextmanager
def locked(folder: Path, name: str = LOCK, *, rivals: str = "", patience: float = 0) -> Iterator[Lock]:
    """Hold the lock of a folder, which is created if necessary, and remove the scratch files of dead processes in it.

    Args:
        folder: the folder to write into.
        name: of the lock, for a folder in which several writers have one each.
        rivals: regular expression of the names of locks that nobody may hold at the same time.
        patience: seconds to wait for the lock.

    Raises:
        UserError: if another process holds the lock or a rival, or the folder cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     with locked(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    stochseg.errors.UserError: ... is in use by process ...
    """
    folder = Path(os.path.abspath(folder))
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = Lock(folder / name)
    try:
        try:
            _acquire_in(folder, lock, time.monotonic() + patience)
            lock.check_rivals(rivals)
        except OSError as error:
            in_the_way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
            why = error.strerror if in_the_way is None else f"{in_the_way} is a file, expected a folder"
            raise UserError(f"cannot write to {folder}: {why}; choose another --out") from None
        sweep(folder)
        yield lock
    finally:
        lock.release()
        for path in created:  # those that are still empty: a failed start leaves nothing behind
            with suppress(OSError):
                path.rmdir()


def _acquire_in(folder: Path, lock: Lock, deadline: float) -> None:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return lock.acquire()
        except UserError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1)
        except FileNotFoundError:  # another writer had created the folder and removed it again, for nothing to write
            if folder.exists():
                raise


@dataclass(frozen=True)
class Claim:
    """A lock as other processes that write for its holder know it."""

    file: Path
    text: str

    def check(self) -> None:
        """Raise a UserError if the lock was lost: its process ended or was suspended, or somebody removed the file."""
        if _read(self.file) != self.text:
            raise UserError(
                f"{self.file} does not belong to this process any more: another one may be writing to the folder. "
                "Nothing was written over; resume when the other one has ended"
            )


class Lock:
    """A lock file. Use `locked`."""

    def __init__(self, file: Path):
        self.file = file
        self.text = json.dumps(
            {"owner": current_owner().tag, "pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        )
        self.claim = Claim(self.file, self.text)
        self._released = threading.Event()

    def acquire(self) -> None:
        """Create the file, or take over the one of a dead process, and start to renew its time."""
        scratch = scratch_path(self.file)
        try:
            scratch.write_text(self.text, encoding="utf-8")
            while not _create(scratch, self.file):
                with _alone(self.file.parent):
                    self._remove_stale(scratch)
        finally:
            scratch.unlink(missing_ok=True)
        threading.Thread(target=self._renew, name=f"lock {self.file}", daemon=True).start()

    def check(self) -> None:
        """Raise a UserError if the lock was lost."""
        self.claim.check()

    def check_rivals(self, names: str) -> None:
        """Raise a UserError if another process holds a lock of such a name. Of two that start at once, both may.

        Call it after `acquire`: whoever comes later sees this lock.
        """
        for file in self.file.parent.glob(".*"):
            if names and re.fullmatch(names, file.name) and file != self.file:
                scratch = scratch_path(self.file)
                try:
                    scratch.touch()
                    with _alone(file.parent):
                        Lock(file)._remove_stale(scratch)
                finally:
                    scratch.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the file, unless it belongs to another process by now."""
        self._released.set()
        if _read(self.file) == self.text:
            with suppress(OSError):
                self.file.unlink()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            with suppress(OSError):  # a share that is away for a while
                os.utime(self.file)

    def _remove_stale(self, scratch: Path) -> None:
        """Remove the lock of a dead process; raise a UserError for one that may be alive."""
        try:
            seen = _read(self.file)
            # Both times are of the clock of the file server.
            age = scratch.stat().st_mtime - self.file.stat().st_mtime
        except FileNotFoundError:
            return
        values = _parse(seen)
        owner = Owner.parse(str(values.get("owner")))
        alive = owner.is_alive() if owner else None
        if alive or (alive is None and age < STALE_SECONDS):
            raise UserError(self._refusal(values, alive, age))
        aside = scratch_path(self.file)
        with suppress(FileNotFoundError):
            os.rename(self.file, aside)  # only one process succeeds
            if _read(aside) != seen:  # another process took over in the meantime, and this is its lock
                _create(aside, self.file)
            aside.unlink()

    def _refusal(self, values: dict[str, object], alive: bool | None, age: float) -> str:
        holder = f"process {values.get('pid', '(unknown)')} on {values.get('host', 'an unknown machine')}"
        if alive:
            return (
                f"{self.file.parent} is in use by {holder} ({self.file.name}); wait until it ends, stop it, or choose "
                "another --out"
            )
        return (
            f"{self.file.parent} is in use by {holder}, active {max(0, round(age))} s ago; wait until it ends, or "
            f"choose another --out. If it is dead, try again in {STALE_SECONDS // 60} minutes or remove {self.file}"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let the processes of this machine take stale locks over one after the other.

    A process that read a stale lock would otherwise move away the lock of the one that was faster. Where folders cannot
    be locked, such as on network shares, the check after the move must do.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _create(source: Path, file: Path) -> bool:
    """Give `file` the content of `source` if it does not exist; whether it did not."""
    try:
        os.link(source, file)  # never visible without its content
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with file.open("x", encoding="utf-8") as stream:
                stream.write(source.read_text(encoding="utf-8"))
        except FileExistsError:
            return False
    return True


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parse(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
