"""The inputs of `predict` in chunks, which are the unit of work of processes, and in parts for several commands."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.errors import UserError
from stochseg.inference.sources import Source
from stochseg.locks import LOCK

T = TypeVar("T")
SAMPLES_PER_CHUNK = 64
"""Samples of the pictures of a chunk, as many as those of 128×128 pixels that share a call of the model."""
MIN_CHUNKS = 32
"""Few inputs are split into at least this many chunks, so that no worker waits long for the last one."""
MAX_PARTS = 10**6


def chunks_of(sources: Sequence[Source], n: int) -> list[list[Source]]:
    """Split inputs into chunks of consecutive pictures; a volume is a chunk of its own.

    Inputs share calls of the model within a chunk only. The chunks depend on the inputs and the number n of samples
    alone, so the results do not depend on the number of processes, not even in their last bits.
    """
    size = max(1, min(SAMPLES_PER_CHUNK // n, math.ceil(len(sources) / MIN_CHUNKS)))
    chunks: list[list[Source]] = []
    room = 0
    for source in sources:
        is_picture = len(source.files) == 1 and source.files[0].name.lower().endswith(PICTURES)
        if room == 0 or not is_picture:
            chunks.append([])
            room = size if is_picture else 1
        chunks[-1].append(source)
        room -= 1
    return chunks


@dataclass(frozen=True)
class Part:
    """Part `index`, from 1, of `count` parts of the inputs; by default all of them.

    Attributes:
        lock: name of the lock of the part in the folder of the results.
        rivals: names of the locks of others who would write the same results.

    >>> Part.parse("2/3").select("abcdefg")
    'be'
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse "2/8", or "slurm" for the task of a SLURM job array.

        Raises:
            UserError: It is neither, or there is no array.
        """
        if text == "slurm":
            return cls._of_slurm()
        found = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= index <= count <= MAX_PARTS:
            raise UserError(f"--part: expected I/N from 1/N to N/N, such as 2/8, or slurm; got {text!r}")
        return cls(index, count)

    @classmethod
    def _of_slurm(cls) -> Part:
        names = ("ID", "MIN", "STEP", "COUNT")
        try:
            task, first, step, count = (int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) for name in names)
        except (KeyError, ValueError):
            raise UserError("--part slurm: expected a task of a job array, such as of sbatch --array=1-8") from None
        index, rest = divmod(task - first, max(1, step))
        if rest or index >= count:
            raise UserError(
                "--part slurm: expected an array without gaps, such as --array=1-8; pass --part I/N instead"
            )
        return cls(index + 1, count)

    @property
    def lock(self) -> str:
        return LOCK if self.count == 1 else f".part-{self.index}-of-{self.count}{LOCK}"

    @property
    def rivals(self) -> str:
        parts = rf"\.part-\d+-of-(?!{self.count}\b)\d+\{LOCK}"
        return parts if self.count == 1 else rf"\{LOCK}|{parts}"

    def select(self, chunks: Sequence[T]) -> Sequence[T]:
        """Every `count`-th chunk, from `index` on."""
        return chunks[self.index - 1 :: self.count]


ALL = Part()
