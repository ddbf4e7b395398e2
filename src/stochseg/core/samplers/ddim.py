"""Multinomial DDIM (Song et al. 2021, Appendix A), with the largest sigma."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.core.grids import Grid
from stochseg.core.noise import Noise, draw_categorical
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers.base import Callback, Denoise, SamplerOutput, walk


def ddim(
    denoise: Denoise, x_T: Tensor, grid: Grid, process: CategoricalProcess, noise: Noise, callback: Callback = None
) -> SamplerOutput:
    """Keep x_t as x_s with probability sigma = (1 - alpha_bar_s) / (1 - alpha_bar_t), else draw x_s = x0 ~ p0.

    This is the largest sigma for which no probability is negative, and the one that adds no fresh noise. Given x0, x_s
    is distributed as q(x_s | x0) if x_t is distributed as q(x_t | x0).
    """

    def jump(x_t: Tensor, log_p0: Tensor, t: int, s: int) -> Tensor:
        bar_t, bar_s = (float(process.schedule.alpha_bar[step]) for step in (t, s))
        x0 = draw_categorical(log_p0, noise.uniform(x_t.shape).to(x_t.device))
        stays = noise.uniform(x_t.shape).to(x_t.device) < (1 - bar_s) / (1 - bar_t)
        return torch.where(stays, x_t, x0)

    return walk(denoise, x_T, grid, process, jump, callback)
