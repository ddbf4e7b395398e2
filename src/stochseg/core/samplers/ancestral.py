"""Ancestral sampling with exact jumps (CCDM Alg. 2)."""

from __future__ import annotations

from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, SamplerOutput, steps_like, walk


def ancestral(
    denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, noise: Noise, callback: Callback = None
) -> SamplerOutput:
    """Draw x_s from the exact posterior of each jump t -> s of the grid. With all T steps this is CCDM Alg. 2.

    Args:
        denoise: the network.
        x_T: "b *space" labels to start from, a draw from `process.prior`.
        grid: the steps at which to call the network; see `make_grid`.
        process: the diffusion process.
        noise: source of the uniforms, one row per row of x_T.
        callback: called at every entry of the grid.

    Returns:
        The labels x0, with the last probabilities and the number of network calls.
    """

    def jump(x_t: Tensor, log_p0: Tensor, t: int, s: int) -> Tensor:
        u = noise.uniform(x_t.shape).to(x_t.device)
        return draw_categorical(process.posterior(x_t, log_p0, steps_like(x_t, t), steps_like(x_t, s)), u)

    return walk(denoise, x_T, grid, process, jump, callback)
