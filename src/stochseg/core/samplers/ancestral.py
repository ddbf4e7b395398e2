"""Ancestral sampling with exact jumps (CCDM Alg. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, SamplerOutput, check_grid


def ancestral(
    denoise: Denoise,
    x_T: Tensor,
    grid: Grid,
    process: CategoricalProcess,
    noise: Noise,
    callback: Callback | None = None,
) -> SamplerOutput:
    """Draw x_s from the exact posterior of each jump t -> s of the grid; the last label is the arg-max of p0.

    With all T steps this is Alg. 2. Note: the arg-max is the paper's and slightly sharper than a draw; the
    distribution it replaces is returned as `log_p0`.
    """
    check_grid(grid, process)
    x_t = x_T
    for i, (t, s) in enumerate(zip(grid, (*grid[1:], 0), strict=True)):
        t_b, s_b = (torch.full((len(x_t),), step, device=x_t.device) for step in (t, s))
        log_p0 = torch.log_softmax(denoise(x_t, t_b), dim=1)
        if callback is not None:
            callback(i, t, x_t, log_p0)
        if s > 0:
            u = noise.uniform(x_t.shape).to(x_t.device)
            x_t = draw_categorical(process.posterior(x_t, log_p0, t_b, s_b), u)
    return SamplerOutput(log_p0.argmax(1), log_p0, len(grid))
