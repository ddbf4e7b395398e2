"""What every sampler receives and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise
from stochseg.core.process import CategoricalProcess
from stochseg.errors import UserError

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(x_t "b h w", t "b") -> logits of x0 "b l h w"."""

Callback = Callable[[int, int, Tensor, Tensor], None]
"""(call index, t, x_t "b h w", log_p0 "b l h w"), after each network call."""


@dataclass(frozen=True)
class SamplerOutput:
    """labels: "b h w"; log_p0: "b l h w", the last call's log-probabilities of x0; evaluations: calls made."""

    labels: Tensor
    log_p0: Tensor
    evaluations: int


class Sampler(Protocol):
    """Draws x0, starting from x_T, with one network call an entry of the grid."""

    def __call__(
        self,
        denoise: Denoise,
        x_T: Tensor,
        grid: Grid,
        process: CategoricalProcess,
        noise: Noise,
        callback: Callback | None = None,
    ) -> SamplerOutput: ...


def check_grid(grid: Grid, process: CategoricalProcess) -> None:
    """A grid begins at T, falls strictly and stays above 0."""
    falls = all(a > b for a, b in pairwise(grid))
    if not grid or grid[0] != process.num_steps or not falls or grid[-1] < 1:
        raise UserError(f"a time grid falls strictly from T={process.num_steps} and ends at 1 or above, got {grid}")
