"""Memory of tensors on the CPU, kept by the process between uses."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MAX_INT = 2**31 - 1
_LARGEST_KEPT = 2**28
"""Bytes; larger tensors are still mapped anew, because those of whole volumes leave holes that the next do not fit."""
_OLD_MMAP_LIMIT = 2**25  # of glibc versions that refuse more


def keep_freed_memory() -> bool:
    """Let the process keep the memory that its tensors free, instead of returning it to the system.

    By default glibc maps the memory of a large tensor anew at every allocation and the system fills it page by page,
    which takes up to a quarter of the time of sampling on CPUs. The process then holds its peak memory until it ends,
    except for tensors of 256 MB and more, which whole volumes have. The choice affects the whole process, so the
    command makes it and the library does not.

    Returns:
        True on success, False without glibc.
    """
    libc = _glibc()
    if libc is None:
        return False
    kept = any(libc.mallopt(_MMAP_THRESHOLD, limit) for limit in (_LARGEST_KEPT, _OLD_MMAP_LIMIT))
    return kept and bool(libc.mallopt(_TRIM_THRESHOLD, _MAX_INT))


def release_freed_memory() -> None:
    """Return freed memory to the system: before it is measured, or before tensors that need it in one piece."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def physical_memory() -> int:
    """Bytes of memory that the machine has; a very large number where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 2**63


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None
