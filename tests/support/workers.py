"""Workers that die: what they run must be importable by their processes."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stochseg.workers import Pool


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Deadly:
    """Work that kills its process if a case of the chunk contains a word."""

    act: Callable[[Any, Sequence[Any]], Iterable[Any]]
    word: str

    def __call__(self, shared: Any, chunk: Sequence[Any]) -> Iterable[Any]:
        if any(self.word in str(case) for case in chunk):
            die()
        return self.act(shared, chunk)


class DeadlyPool(Pool):
    """The workers of a pool, which die of every case that contains a word."""

    def __init__(self, pool: Pool, word: str):
        super().__init__(pool.client, pool.device)
        self.word = word

    def run(self, setup, act, chunks, lost):
        return super().run(setup, Deadly(act, self.word), chunks, lost)


class LosingPool:
    """Does the work in this process, except that every case that contains a word counts as lost."""

    device = "cpu"

    def __init__(self, word: str):
        self.word = word

    def run(self, setup, act, chunks, lost):
        for case in (case for chunk in chunks for case in chunk):
            yield from [lost(case)] if self.word in str(case) else act(setup(), [case])


def worker_pids(pool: Pool) -> list[int]:
    """Processes of the workers."""
    return list(pool.client.run(os.getpid).values())
