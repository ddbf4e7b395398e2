"""Parts of the work of a command, for several processes that are started by hand or by a SLURM array."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from stochseg.errors import UserError
from stochseg.locks import LOCK

T = TypeVar("T")
MAX_PARTS = 10**6


@dataclass(frozen=True)
class Part:
    """Part `index`, from 1, of `count` parts of the work; by default all of it.

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

    def select(self, units: Sequence[T]) -> Sequence[T]:
        """Every `count`-th unit of work, from `index` on."""
        return units[self.index - 1 :: self.count]


ALL = Part()
