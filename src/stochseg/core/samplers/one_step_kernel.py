"""The strided rule of the released CCDM code, kept only to reproduce the paper's figure of quality against steps."""

from __future__ import annotations

from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, SamplerOutput, steps_like, walk


def one_step_kernel(
    denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, noise: Noise, callback: Callback = None
) -> SamplerOutput:
    """Draw from the posterior of the single step t -> t - 1 and use the result as x_s, however far s is below t.

    Correct only if the grid has all T steps. On any other grid it is not a sampler of the process: x_s keeps the noise
    of t - 1, which the network at s takes for structure. Use `ancestral` or `sticky` for samples.
    """

    def jump(x_t: Tensor, log_p0: Tensor, t: int, s: int) -> Tensor:
        u = noise.uniform(x_t.shape).to(x_t.device)
        return draw_categorical(process.posterior(x_t, log_p0, steps_like(x_t, t), steps_like(x_t, t - 1)), u)

    return walk(denoise, x_T, grid, process, jump, callback)
