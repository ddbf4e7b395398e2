"""The signature and result of every sampler, and the walk down a time grid that all share."""

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
"""(x_t "b *space" of the type of x_T, t "b" int64) -> logits of x0 "b l *space". t is on the CPU whatever the device of
x_t, so that a sampler reads no device; the model moves it to its own."""

Callback = Callable[[int, int, Tensor, Tensor], None] | None
"""(index, t, x_t "b *space", log_p0 "b l *space"), called at every entry of the grid; None for no calls."""

Jump = Callable[[Tensor, Tensor, int, int], Tensor]
"""(x_t "b *space", log_p0 "b l *space", t, s) -> x_s "b *space", for 0 < s < t."""


@dataclass(frozen=True)
class SamplerOutput:
    """The result of a sampler.

    Attributes:
        labels: "b *space" int64.
        log_p0: "b l *space", the log-probabilities of x0 of the last network call.
        evaluations: number of network calls.
    """

    labels: Tensor
    log_p0: Tensor
    evaluations: int


class Sampler(Protocol):
    """The signature of every sampler."""

    def __call__(
        self,
        denoise: Denoise,
        x_T: Tensor,
        grid: Grid,
        process: CategoricalProcess,
        noise: Noise,
        callback: Callback = None,
    ) -> SamplerOutput:
        """Draw x0 with one network call per entry of the grid (a corrector makes two, except at the first).

        Args:
            denoise: the network.
            x_T: "b *space" labels to start from, a draw from `process.prior`.
            grid: the steps at which to call the network; see `make_grid`.
            process: the diffusion process.
            noise: source of the uniforms, one row per row of x_T.
            callback: called at every entry of the grid.

        Raises:
            UserError: if the grid does not fall strictly from T to at least 1.
        """
        ...


def walk(
    denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, jump: Jump, callback: Callback = None
) -> SamplerOutput:
    """Call the network at every entry of the grid and `jump` to the next; the final labels are the arg-max of p0.

    Note: the arg-max is the paper's and slightly sharper than a draw; the distribution it replaces is returned as
    `log_p0`.

    Args:
        jump: the rule that draws x_s from x_t and p0. For the other arguments see `Sampler`.
    """
    falls = all(a > b for a, b in pairwise(grid))
    if not grid or grid[0] != process.num_timesteps or not falls or grid[-1] < 1:
        raise UserError(f"a time grid falls strictly from T={process.num_timesteps} and ends at 1 or above, got {grid}")
    x_t = x_T
    for i, (t, s) in enumerate(zip(grid, (*grid[1:], 0), strict=True)):
        log_p0 = process.log_p0(denoise(x_t, steps_like(x_t, t)), x_t)
        if callback is not None:
            callback(i, t, x_t, log_p0)
        if s > 0:
            x_t = jump(x_t, log_p0, t, s).to(x_T.dtype)
            del log_p0  # a volume's takes gigabytes, which the next call needs
    return SamplerOutput(log_p0.argmax(1), log_p0, len(grid))


def steps_like(x: Tensor, t: int) -> Tensor:
    """Repeat the step t for every row of x: "b" int64 on the CPU."""
    return torch.full((len(x),), t)
