"""The input of every output writer: one predicted input with its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stochseg.inference.calibrated import margins_of
from stochseg.inference.result import StackResult
from stochseg.inference.stacks import Stack
from stochseg.models import Calibration
from stochseg.types import DatasetInfo


@dataclass(frozen=True)
class Prediction:
    """One input and its samples.

    result: the samples; stack: the input's raw slices and their geometry; info: class names and colors; model: name of
    the model; overview: whether overview.png is written; also: names of outputs that are written on request;
    calibration: of the model, if it holds for these samples.
    """

    result: StackResult
    stack: Stack
    info: DatasetInfo
    model: str = "stochseg"
    overview: bool = False
    also: tuple[str, ...] = ()
    calibration: Calibration | None = None

    @property
    def is_picture(self) -> bool:
        """Whether the input has no place in space, so that its arrays are written as TIFF and PNG, not as NIfTI."""
        return self.stack.lattice is None

    @cached_property
    def margins(self) -> dict[int, npt.NDArray[np.uint8]]:
        """Margin maps "s h w" by class, where the model is calibrated."""
        return margins_of(self)

    @cached_property
    def shown_slice(self) -> int:
        """Index of the slice with the most foreground; the middle one if there is none."""
        fused = self.result.fused
        sizes = (fused != 0).reshape(len(fused), -1).sum(1)
        return int(sizes.argmax()) if sizes.any() else len(fused) // 2


@dataclass(frozen=True)
class Writer:
    """How one file is written, and for which inputs.

    write: writes the file at a path; applies: whether a prediction gets this file.
    """

    write: Callable[[Prediction, Path], None]
    applies: Callable[[Prediction], bool]
