"""Draws in little memory: labels of 8 bits and draws in blocks give the same labels."""

import pytest
import torch

from stochseg import core
from stochseg.core.noise import LatinNoise, draw_categorical


@pytest.mark.parametrize("name", core.SAMPLERS)
def test_every_sampler_draws_the_same_labels_in_8_bits(name):
    process = core.CategoricalProcess(core.cosine(20), 3)
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))

    def denoise(x_t, t):
        return torch.nn.functional.one_hot(x_t.long(), 3).float().matmul(weight).movedim(-1, 1)

    def draw(dtype):
        noise = core.SeededNoise([(0, 1), (0, 2)])
        x_T = process.prior((2, 4, 5, 6), noise).to(dtype)
        return core.SAMPLERS[name](denoise, x_T, (20, 11, 3), process, noise)

    small, large = draw(torch.uint8), draw(torch.int64)
    assert small.labels.dtype == torch.int64
    assert torch.equal(small.labels, large.labels)
    assert torch.equal(small.log_p0, large.log_p0)


def test_draws_in_blocks_are_those_of_all_at_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(2, 3, 7, 4, 5, generator=generator).log_softmax(1)
    u = torch.rand(2, 7, 4, 5, generator=generator)
    whole = draw_categorical(log_p, u)
    latin = LatinNoise([(0,)], 4, range(4)).uniform((4, 9, 11))
    monkeypatch.setattr("stochseg.core.noise.BLOCK", 25)
    assert torch.equal(draw_categorical(log_p, u), whole)
    assert torch.equal(LatinNoise([(0,)], 4, range(4)).uniform((4, 9, 11)), latin)
