"""Samplers of Gaussian diffusion: DDPM and DDIM steps, and the walk down a time grid that both share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from stochseg.core.gaussian.process import GaussianProcess, standard_normal
from stochseg.core.grids import Grid
from stochseg.core.noise import Noise
from stochseg.core.samplers.base import Callback, steps_like
from stochseg.errors import UserError, lookup

GaussianDenoise = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(x_t "b c *space", t "b" int64 on the CPU, x0 of the previous call or None) -> x0 "b c *space", and v "b c *space" if
the network predicts its variance (see `GaussianProcess.log_variance`), else None."""

Step = Callable[[GaussianProcess, Tensor, Tensor, Tensor | None, int, int, Noise], Tensor]
"""(process, x_t, x0, v, t, s, noise) -> x_s, for 0 < s < t."""


def ddpm_step(
    process: GaussianProcess, x_t: Tensor, x0: Tensor, v: Tensor | None, t: int, s: int, noise: Noise
) -> Tensor:
    """Draw x_s ~ N(posterior mean, variance) with the posterior's variance, or the learned one if there is a `v`."""
    t_rows, s_rows = steps_like(x_t, t), steps_like(x_t, s)
    mean, variance = process.posterior(x_t, x0, t_rows, s_rows)
    deviation = variance.sqrt() if v is None else (0.5 * process.log_variance(v, t_rows, s_rows)).exp()
    return mean + deviation * standard_normal(noise, x_t.shape).to(x_t)


def ddim_step(
    process: GaussianProcess, x_t: Tensor, x0: Tensor, v: Tensor | None, t: int, s: int, noise: Noise
) -> Tensor:
    """x_s = sqrt(alpha_bar_s) x0 + sqrt(1 - alpha_bar_s) eps with the eps of x_t (Song et al. 2021, eta = 0)."""
    return process.q_sample(x0, steps_like(x_t, s), process.predict_eps(x_t, x0, steps_like(x_t, t)))


GAUSSIAN_STEPS: dict[str, Step] = {"ddpm": ddpm_step, "ddim": ddim_step}


def gaussian_step(name: str) -> Step:
    """Look up the step of a sampler.

    Args:
        name: a key of `GAUSSIAN_STEPS`.

    Returns:
        The function that draws x_s from x_t.

    Raises:
        UserError: if the name is unknown.
    """
    return lookup("sampler", GAUSSIAN_STEPS, name)


def gaussian_walk(
    denoise: GaussianDenoise,
    x_T: Tensor,
    grid: Grid,
    process: GaussianProcess,
    step: Step,
    noise: Noise,
    callback: Callback = None,
    bound: float = 1.0,
    ahead: float = 0.0,
) -> Tensor:
    """Call the network at every entry of the grid and step to the next.

    The last jump, to t = 0, is x0 without noise.

    Args:
        denoise: the network.
        x_T: "b c *space", standard normal.
        grid: the steps at which to call the network.
        process: the diffusion process.
        step: the rule that draws x_s; see `gaussian_step`.
        noise: source of the uniforms.
        callback: called with (index, t, x_t, x0) after each network call.
        bound: x0 is clamped to [-bound, bound] after every call, the range of the data.
        ahead: every jump goes further than the grid by this multiple of its length, so that x_t is cleaner than the
            network is told: the asymmetric time intervals of Chen, Zhang and Hinton (2023), against the errors of few
            steps.

    Returns:
        x0 of the last call, "b c *space".

    Raises:
        UserError: if the grid is empty.
    """
    x_t, x0 = x_T, None
    for i, (t, s) in enumerate(zip(grid, (*grid[1:], 0), strict=True)):
        x0, v = denoise(x_t, steps_like(x_t, t), x0)
        x0 = x0.clamp(-bound, bound)
        if callback is not None:
            callback(i, t, x_t, x0)
        if s > 0:
            x_t = step(process, x_t, x0, v, t, max(1, s - round(ahead * (t - s))), noise)
    if x0 is None:
        raise UserError("a time grid has at least one step, got none")
    return x0
