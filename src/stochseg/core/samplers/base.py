"""What every sampler receives and returns, and the walk down a grid that all share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise
from stochseg.core.process import CategoricalProcess
from stochseg.errors import UserError

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(x_t "b h w", t "b" int64) -> logits of x0 "b l h w". t is on the CPU whatever the device of x_t, so that a sampler
reads no device; the model moves it to its own."""

Callback = Callable[[int, int, Tensor, Tensor], None]
"""(call index, t, x_t "b h w", log_p0 "b l h w"), after each entry of the grid."""

Jump = Callable[[Tensor, Tensor, int, int], Tensor]
"""(x_t "b h w", log_p0 "b l h w", t, s) -> x_s "b h w", for 0 < s < t."""


@dataclass(frozen=True)
class SamplerOutput:
    """labels: "b h w"; log_p0: "b l h w", the last call's log-probabilities of x0; evaluations: calls made."""

    labels: Tensor
    log_p0: Tensor
    evaluations: int


class Sampler(Protocol):
    """Draws x0, starting from x_T, with one network call an entry of the grid (a corrector: two, but for the first)."""

    def __call__(
        self,
        denoise: Denoise,
        x_T: Tensor,
        grid: Grid,
        process: CategoricalProcess,
        noise: Noise,
        callback: Callback | None = None,
    ) -> SamplerOutput: ...


def walk(
    denoise: Denoise,
    x_T: Tensor,
    grid: Grid,
    process: CategoricalProcess,
    jump: Jump,
    callback: Callback | None = None,
) -> SamplerOutput:
    """Call the network at every entry of the grid and `jump` to the next; the last label is the arg-max of p0.

    Note: the arg-max is the paper's and slightly sharper than a draw; the distribution it replaces is returned as
    `log_p0`.
    """
    check_grid(grid, process)
    x_t = x_T
    for i, (t, s) in enumerate(zip(grid, (*grid[1:], 0), strict=True)):
        log_p0 = torch.log_softmax(denoise(x_t, steps_like(x_t, t)), dim=1)
        if callback is not None:
            callback(i, t, x_t, log_p0)
        if s > 0:
            x_t = jump(x_t, log_p0, t, s)
    return SamplerOutput(log_p0.argmax(1), log_p0, len(grid))


def steps_like(x: Tensor, t: int) -> Tensor:
    """The step t for every row of x, "b" int64 on the CPU."""
    return torch.full((len(x),), t)


def check_grid(grid: Grid, process: CategoricalProcess) -> None:
    """A grid begins at T, falls strictly and stays above 0."""
    falls = all(a > b for a, b in pairwise(grid))
    if not grid or grid[0] != process.num_timesteps or not falls or grid[-1] < 1:
        raise UserError(f"a time grid falls strictly from T={process.num_timesteps} and ends at 1 or above, got {grid}")
