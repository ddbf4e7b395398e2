"""Uniforms that neighboring pixels share, for label maps drawn from probabilities per pixel.

A probability map says how likely a label is at each pixel, and nothing about how pixels belong together. Drawing pixels
independently gives salt and pepper. Here every pixel's uniform is exactly uniform, so that the drawn labels have the
probabilities of the map at every pixel, but uniforms of neighbors are alike: outlines move as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from stochseg.core.noise import Noise, draw_normal
from stochseg.errors import UserError

REACH = 4.0
"""Standard deviations of the smoothing kernel at which it is cut."""


def coherent_uniform(noise: Noise, rows: int, size: Sequence[int], lengths: Sequence[float] | None = None) -> Tensor:
    """Draw uniforms "m *space", each of them exactly uniform, that vary smoothly over the image.

    With lengths, they are the normal distribution function of a Gaussian field of variance 1 and correlation
    exp(-d² / 2), where d is the distance of two pixels in units of the lengths: white noise on a larger grid, smoothed
    with a kernel of norm 1. Without, all pixels of a row share one uniform, the limit of infinite lengths.

    Args:
        noise: Source of uniforms with `rows` rows.
        rows: m.
        size: The pixels of each axis.
        lengths: Pixels per axis over which the field varies, at most the longest side; 0 is independence.

    Returns:
        float64 in [0, 1).

    >>> from stochseg.core import SeededNoise
    >>> coherent_uniform(SeededNoise([(0,), (1,)]), 2, (3, 4)).flatten(1).std(1).tolist()
    [0.0, 0.0]
    """
    if lengths is None:
        shared = noise.uniform((rows, *[1] * len(size))).double()
        return shared.expand(rows, *size)
    if len(lengths) != len(size) or not all(0 <= length <= max(size) for length in lengths):
        raise UserError(
            f"coherence: expected {len(size)} lengths from 0 to {max(size)} pixels, the longest side, got "
            f"{[round(length, 2) for length in lengths]}; without a length, all pixels share one uniform"
        )
    kernels = [_kernel(length) for length in lengths]
    padded = [side + len(kernel) - 1 for side, kernel in zip(size, kernels, strict=True)]
    field = draw_normal(noise.uniform((rows, *padded))).double()
    for axis, kernel in enumerate(kernels, start=1):
        field = _smooth(field, axis, kernel.to(field))
    uniform: Tensor = torch.special.ndtr(field)
    return uniform.clamp_(max=1 - 2**-53)


def _kernel(length: float) -> Tensor:
    """A Gaussian of norm 1 whose autocorrelation has the standard deviation `length`."""
    width = length / math.sqrt(2)
    reach = math.ceil(REACH * width)
    places = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = torch.exp(-((places / max(width, 1e-9)) ** 2) / 2)
    normed: Tensor = kernel / kernel.norm()
    return normed


def _smooth(field: Tensor, axis: int, kernel: Tensor) -> Tensor:
    """Convolve along an axis, where the kernel lies inside."""
    lines: Tensor = field.movedim(axis, -1)
    flat: Tensor = conv1d(lines.reshape(-1, 1, lines.shape[-1]), kernel[None, None])
    smooth: Tensor = flat.reshape(*lines.shape[:-1], -1).movedim(-1, axis)
    return smooth
