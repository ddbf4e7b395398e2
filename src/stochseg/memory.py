"""The memory of tensors on the CPU: kept by the process between uses."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process keep what its tensors free, instead of giving it back and asking for it again.

    glibc maps a large tensor's memory afresh at every allocation, and the system then fills it page by page: up to a
    quarter of the time of sampling on CPUs. The price is that the process holds on to the most it ever needed. A choice
    for a whole process, so the command makes it and the library does not. False where there is no glibc.
    """
    libc = _glibc()
    if libc is None:
        return False
    kept = any(libc.mallopt(_MMAP_THRESHOLD, most) for most in (_MOST, 2**25))  # which older ones refuse above 32 MB
    return kept and bool(libc.mallopt(_TRIM_THRESHOLD, _MOST))


def give_back_memory() -> None:
    """Return what is free to the system, so that memory that is used from here on can be measured."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None
