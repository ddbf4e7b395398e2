"""Sticky noise: a pixel leaves its noise label once, at a step drawn in advance."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, SamplerOutput, walk


def sticky(
    denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, noise: Noise, callback: Callback = None
) -> SamplerOutput:
    """Draw u once per pixel; at step s the pixels with u < alpha_bar_s show a fresh draw x0 ~ p0, all others keep the
    label they have in x_T.

    Given x0, a pixel of x_s is x0 with probability alpha_bar_s and uniform otherwise: exactly q(x_s | x0) for every s
    of the grid, though not as a Markov chain. Since x0 is drawn anew for all free pixels at every call, an early
    mistake of a pixel is corrected later, which is why few calls are enough. Note: the free pixels of x_t show more of
    x0 than the network, which learned q(x_t | x0), expects of them; where pixels are independent and a label is rare,
    that makes it rarer still, and `ancestral` is the exact choice.
    """
    free = noise.uniform(x_T.shape).to(x_T.device)

    def jump(x_t: Tensor, log_p0: Tensor, t: int, s: int) -> Tensor:
        x0 = draw_categorical(log_p0, noise.uniform(x_t.shape).to(x_t.device), x_T.dtype)
        return torch.where(free < float(process.schedule.alpha_bar[s]), x0, x_T)

    return walk(denoise, x_T, grid, process, jump, callback)
