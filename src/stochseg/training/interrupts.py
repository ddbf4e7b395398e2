"""Signals that stop a run, delayed to a moment when its state is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of the block."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    caught: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _: caught.append(number)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
    if caught:
        signal.raise_signal(caught[0])
