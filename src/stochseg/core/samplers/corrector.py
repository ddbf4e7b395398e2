"""A corrector around any sampler: at every step of the grid some pixels are drawn again, given all others."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, Sampler, SamplerOutput


def corrector(sampler: Sampler, fraction: float = 0.25) -> Sampler:
    """Add to `sampler`, before each of its network calls except the first, one more call that corrects x_t.

    The extra call at (x_t, t) draws x0 ~ p0 and, for a random `fraction` of the pixels, a new x_t ~ q(x_t | x0). For a
    single pixel this is a Gibbs step, which leaves the distribution of x_t unchanged; given x0 it leaves q(x_t | x0)
    unchanged for any fraction. A grid of K entries costs 2 K - 1 calls.
    """

    def corrected(
        denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, noise: Noise, callback: Callback = None
    ) -> SamplerOutput:
        calls = 0

        def correct_then_denoise(x_t: Tensor, t: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if int(t[0]) == process.num_timesteps:
                return denoise(x_t, t)
            calls += 1
            u = noise.uniform(x_t.shape).to(x_t.device)
            x0 = draw_categorical(process.log_p0(denoise(x_t, t), x_t), u)
            fresh = process.q_sample(x0, t, noise)
            again = noise.uniform(x_t.shape).to(x_t.device) < fraction
            # In place, so that the sampler continues from the corrected map.
            x_t.copy_(torch.where(again, fresh, x_t))
            return denoise(x_t, t)

        out = sampler(correct_then_denoise, x_T, grid, process, noise, callback)
        return SamplerOutput(out.labels, out.log_p0, calls)

    inner = inspect.getdoc(sampler) or inspect.getdoc(inspect.getmodule(sampler))
    corrected.__doc__ = f"{inspect.getdoc(corrector)}\n\nfraction: {fraction}\n\nsampler: {inner}"
    return corrected
