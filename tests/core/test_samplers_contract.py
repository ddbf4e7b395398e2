"""What every sampler of the registry owes its callers."""

from __future__ import annotations

import pytest
import torch

from stochseg.core import GRIDS, SAMPLERS, CategoricalProcess, SeededNoise, cosine, make_grid
from stochseg.errors import UserError

L, T, H, W = 3, 50, 6, 7
PROCESS = CategoricalProcess(cosine(T), L)
TABLE = 2 * torch.randn(T + 1, L, L, generator=torch.Generator().manual_seed(0))


def denoise(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """An arbitrary denoiser that looks at one pixel at a time: logits are a table of (t, x_t)."""
    return TABLE[t[:, None, None], x_t].movedim(-1, 1)


def sample(name: str, keys, grid=None, denoiser=denoise, callback=None):
    noise = SeededNoise(keys)
    grid = make_grid("even", PROCESS.schedule, 8) if grid is None else grid
    return SAMPLERS[name](denoiser, PROCESS.prior((len(keys), H, W), noise), grid, PROCESS, noise, callback)


KEYS = [(3, i) for i in range(6)]
samplers = pytest.mark.parametrize("name", SAMPLERS)


@samplers
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [1, 2, 8, T])
def test_shapes_types_and_one_call_an_entry_of_the_grid(name, grid, steps):
    grid = make_grid(grid, PROCESS.schedule, steps)
    seen = []

    def counted(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert x_t.shape == (6, H, W)
        assert x_t.dtype == torch.int64
        assert 0 <= x_t.min() <= x_t.max() < L
        assert t.shape == (6,)
        assert len(t.unique()) == 1
        seen.append(int(t[0]))
        return denoise(x_t, t)

    out = sample(name, KEYS, grid, counted)
    assert tuple(seen) == grid
    assert out.evaluations == len(grid)
    assert out.labels.shape == (6, H, W)
    assert out.labels.dtype == torch.int64
    assert 0 <= out.labels.min() <= out.labels.max() < L
    assert out.log_p0.shape == (6, L, H, W)
    assert out.log_p0.dtype == torch.float32
    torch.testing.assert_close(out.log_p0.exp().sum(1), torch.ones(6, H, W))


@samplers
def test_equal_keys_give_equal_samples_and_other_keys_others(name):
    first, again = sample(name, KEYS), sample(name, KEYS)
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.log_p0, again.log_p0)
    assert not torch.equal(first.labels, sample(name, [(4, i) for i in range(6)]).labels)


@samplers
def test_a_sample_does_not_depend_on_its_batch(name):
    together = sample(name, KEYS)
    for rows in ([0], [5], [4, 1], [5, 4, 3, 2, 1, 0]):
        apart = sample(name, [KEYS[i] for i in rows])
        assert torch.equal(apart.labels, together.labels[rows])
        torch.testing.assert_close(apart.log_p0, together.log_p0[rows])


@samplers
def test_the_callback_sees_every_call(name):
    grid = make_grid("trailing", PROCESS.schedule, 5)
    seen = []
    out = sample(name, KEYS, grid, callback=lambda *values: seen.append(values))
    assert [i for i, *_ in seen] == [0, 1, 2, 3, 4]
    assert tuple(t for _, t, *_ in seen) == grid
    for _, t, x_t, log_p0 in seen:
        expected = torch.log_softmax(denoise(x_t, torch.full((6,), t)), 1)
        torch.testing.assert_close(log_p0, expected)
    assert torch.equal(seen[-1][3], out.log_p0)


@samplers
@pytest.mark.parametrize("steps", [1, 3])
def test_a_certain_denoiser_is_obeyed(name, steps):
    """A network that knows the answer is followed to the pixel, however noisy the last x_t still is."""
    truth = torch.randint(L, (6, H, W), generator=torch.Generator().manual_seed(1))
    grid = make_grid("trailing", PROCESS.schedule, steps)
    out = sample(name, KEYS, grid, lambda x_t, t: PROCESS.log_onehot(truth))
    assert torch.equal(out.labels, truth)


@samplers
@pytest.mark.parametrize("grid", [(), (T - 1, 1), (T, 10, 10, 1), (T, 10, 20, 1), (T, 10, 0), (T + 1, 1), (T, -1)])
def test_a_bad_grid_is_refused(name, grid):
    def untouched(x_t, t):
        raise AssertionError("the network was called")

    with pytest.raises(UserError) as error:
        sample(name, KEYS, grid, untouched)
    assert f"falls strictly from T={T}" in str(error.value)
    assert str(grid) in str(error.value)
