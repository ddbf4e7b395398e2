"""Which process a lock or a scratch file belongs to, and whether that process is still running."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
_TAG = re.compile(r"([0-9a-f]{6})([0-9a-f]{6})([0-9a-f]{6})-([0-9a-f]+)-([0-9a-f]+)")


@dataclass(frozen=True)
class Owner:
    """A process, distinct from every other on all machines that share a disk, before and after a restart.

    host, boot and namespace are digests: of the machine, of its last start, and of the table of processes in which
    `pid` counts (each container has its own). start: when the process began, because a pid is used again.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    @property
    def tag(self) -> str:
        """The owner as a part of file names, without dots."""
        return f"{self.host}{self.boot}{self.namespace}-{self.pid:x}-{self.start:x}"

    @classmethod
    def parse(cls, tag: str) -> Owner | None:
        """Read a tag; None if it is not one.

        >>> Owner.parse(current_owner().tag) == current_owner()
        True
        """
        found = _TAG.fullmatch(tag)
        return found and cls(found[1], found[2], found[3], int(found[4], 16), int(found[5], 16))

    def is_alive(self) -> bool | None:
        """Whether the process is running; None if that cannot be known here, as on another machine."""
        here = current_owner()
        if self.host != here.host:
            return None
        if self.boot != here.boot:
            return False
        if self.namespace != here.namespace:
            return None
        if _PROC.joinpath("self/stat").exists():
            return _start_time(self.pid) == self.start
        if os.name != "posix":
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs, and belongs to another user
            return True
        return True


def current_owner() -> Owner:
    """This process."""
    return _owner(os.getpid())


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:  # by pid, which changes at a fork
    host = _digest(socket.gethostname() + _text(Path("/etc/machine-id")))
    boot = _digest(_text(_PROC / "sys/kernel/random/boot_id"))
    try:
        namespace = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        namespace = ""
    return Owner(host, boot, _digest(namespace), pid, _start_time(pid) or 0)


def _start_time(pid: int) -> int | None:
    """When a process began, in ticks since the machine started; None if it is not running."""
    try:
        # The name in parentheses may contain anything.
        text = (_PROC / f"{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
