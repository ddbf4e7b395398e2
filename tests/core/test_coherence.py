"""Uniforms that neighbors share: exactly uniform at every pixel, with the stated correlation."""

import numpy as np
import pytest
import torch
from scipy import stats

from stochseg.core import SeededNoise, coherent_uniform
from stochseg.core.coherence import _kernel, _smooth
from stochseg.errors import UserError


def test_the_field_has_variance_one_everywhere_and_the_stated_correlation():
    size, lengths = (5, 6), (2.0, 3.0)
    kernels = [_kernel(length) for length in lengths]
    padded = [side + len(kernel) - 1 for side, kernel in zip(size, kernels, strict=True)]
    noise = torch.eye(padded[0] * padded[1], dtype=torch.float64).view(-1, *padded)  # the smoothing as a matrix
    field = _smooth(_smooth(noise, 1, kernels[0]), 2, kernels[1]).flatten(1)
    covariance = field.T @ field
    places = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1).reshape(-1, 2) / lengths
    distance = ((places[:, None] - places[None]) ** 2).sum(-1)
    assert torch.allclose(covariance.diagonal(), torch.ones(30, dtype=torch.float64), atol=1e-12)
    assert np.abs(covariance.numpy() - np.exp(-distance / 2)).max() < 1e-3


@pytest.mark.parametrize("lengths", [None, (0.0, 0.0), (2.5, 1.0)])
def test_every_pixel_is_uniform(lengths):
    rows = 4000
    drawn = coherent_uniform(SeededNoise([(1, i) for i in range(rows)]), rows, (2, 3), lengths)
    assert drawn.shape == (rows, 2, 3)
    for pixel in drawn.flatten(1).T:
        assert stats.kstest(pixel.numpy(), "uniform").pvalue > 1e-4


def test_lengths_beyond_the_image_are_refused():
    with pytest.raises(UserError, match="coherence.*longest side"):
        coherent_uniform(SeededNoise([(0,)]), 1, (4, 4), (9.0, 1.0))
