"""The contract of every sampler of the registry."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from scipy.stats import binomtest, chisquare

from stochseg.core import GRIDS, SAMPLERS, CategoricalProcess, SeededNoise, cosine, make_grid
from stochseg.core.samplers import corrector, sticky
from stochseg.core.schedule import per_row
from stochseg.errors import UserError

L, T, H, W = 3, 50, 6, 7
PROCESS = CategoricalProcess(cosine(T), L)
TABLE = 2 * torch.randn(T + 1, L, L, generator=torch.Generator().manual_seed(0))


def denoise(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """An arbitrary denoiser that looks at one pixel at a time: logits are a table of (t, x_t)."""
    return TABLE[per_row(t, x_t), x_t].movedim(-1, 1)


def sample(name: str, keys, grid=None, denoiser=denoise, callback=None, space=(H, W)):
    noise = SeededNoise(keys)
    grid = make_grid("even", PROCESS.schedule, 8) if grid is None else grid
    return SAMPLERS[name](denoiser, PROCESS.prior((len(keys), *space), noise), grid, PROCESS, noise, callback)


KEYS = [(3, i) for i in range(6)]
samplers = pytest.mark.parametrize("name", SAMPLERS)
FALSE_ALARM = 1e-8


@samplers
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [1, 2, 8, T])
def test_shapes_types_and_one_call_per_entry_of_the_grid(name, grid, steps):
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
    # A corrector calls the network twice at every entry except the first.
    expected = grid if name != "corrector" else (grid[0], *(t for t in grid[1:] for _ in range(2)))
    assert tuple(seen) == expected
    assert out.evaluations == len(expected)
    assert out.labels.shape == (6, H, W)
    assert out.labels.dtype == torch.int64
    assert 0 <= out.labels.min() <= out.labels.max() < L
    assert out.log_p0.shape == (6, L, H, W)
    assert out.log_p0.dtype == torch.float32
    torch.testing.assert_close(out.log_p0.exp().sum(1), torch.ones(6, H, W))


@samplers
def test_equal_keys_give_equal_samples_and_other_keys_do_not(name):
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
def test_the_callback_sees_every_entry_of_the_grid(name):
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
def test_a_certain_denoiser_is_followed(name, steps):
    """Every pixel of the answer is returned, however noisy the last x_t still is."""
    truth = torch.randint(L, (6, H, W), generator=torch.Generator().manual_seed(1))
    grid = make_grid("trailing", PROCESS.schedule, steps)
    out = sample(name, KEYS, grid, lambda x_t, t: PROCESS.log_onehot(truth))
    assert torch.equal(out.labels, truth)


@samplers
@pytest.mark.parametrize("space", [(H * W,), (2, 3, W)])
def test_maps_have_any_number_of_dimensions(name, space):
    """The same pixels in another shape: the same labels and probabilities."""
    plane, other = (sample(name, KEYS, space=shape) for shape in ((H, W), space))
    assert other.labels.shape == (6, *space)
    assert torch.equal(other.labels.view(6, H, W), plane.labels)
    assert torch.equal(other.log_p0.view(6, L, H, W), plane.log_p0)


@samplers
def test_no_device_is_read(name):
    """Tensors on the meta device have no data: whatever reads one (item, bool, a copy to the CPU) raises."""
    noise, seen = SeededNoise(KEYS, "meta"), []

    def network(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append((x_t.device.type, t.device.type))
        return torch.empty(len(x_t), L, H, W, device="meta")

    x_T = PROCESS.prior((6, H, W), noise)
    out = SAMPLERS[name](network, x_T, make_grid("even", PROCESS.schedule, T), PROCESS, noise)
    assert set(seen) == {("meta", "cpu")}
    assert out.labels.device.type == out.log_p0.device.type == "meta"


@samplers
@pytest.mark.parametrize("grid", [(), (T - 1, 1), (T, 10, 10, 1), (T, 10, 20, 1), (T, 10, 0), (T + 1, 1), (T, -1)])
def test_a_bad_grid_raises(name, grid):
    def untouched(x_t, t):
        raise AssertionError("the network was called")

    with pytest.raises(UserError) as error:
        sample(name, KEYS, grid, untouched)
    assert f"falls strictly from T={T}" in str(error.value)
    assert str(grid) in str(error.value)


def marginals(name: str, grid: tuple[int, ...]) -> dict[int, float]:
    """Test x_s at every step of the grid, for a denoiser that knows x0; return the smaller p-value of two tests.

    x_s is x0 with probability alpha_bar_s + (1 - alpha_bar_s)/L (exact binomial), all other labels are equally likely
    (chi-square).
    """
    truth = torch.zeros(6, 100, 100, dtype=torch.int64)
    seen: dict[int, float] = {}

    def look(i: int, s: int, x_s: torch.Tensor, log_p0: torch.Tensor) -> None:
        keep = PROCESS.schedule.alpha_bar[s].item()
        kept, *others = torch.bincount(x_s.flatten(), minlength=L).tolist()
        seen[s] = binomtest(kept, x_s.numel(), keep + (1 - keep) / L).pvalue
        if sum(others) > 50:
            seen[s] = min(seen[s], chisquare(others).pvalue)

    noise = SeededNoise(KEYS)
    x_T = PROCESS.prior(truth.shape, noise)
    SAMPLERS[name](lambda x_t, t: PROCESS.log_onehot(truth), x_T, grid, PROCESS, noise, look)
    return seen


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [3, 10, T])
@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"one-step-kernel"}))
def test_every_rule_draws_from_q_of_x_s_given_x0(name, steps, grid):
    """Binomial tests of 60,000 pixels at every step: about 800 at 1e-8, so a false alarm in 1 of 100,000 suites."""
    seen = marginals(name, make_grid(grid, PROCESS.schedule, steps))
    assert len(seen) == steps
    assert min(seen.values()) > FALSE_ALARM, seen


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [3, 10])
def test_the_released_rule_does_not(steps, grid):
    seen = marginals("one-step-kernel", make_grid(grid, PROCESS.schedule, steps))
    del seen[T]  # where all rules start from the prior
    assert max(seen.values()) < 1e-4 * FALSE_ALARM, seen


def test_with_all_steps_the_released_rule_is_ancestral():
    grid = make_grid("even", PROCESS.schedule, T)
    assert torch.equal(sample("one-step-kernel", KEYS, grid).log_p0, sample("ancestral", KEYS, grid).log_p0)


@pytest.mark.parametrize("name", ["sticky", "ddim"])
def test_consecutive_maps_share_their_noise(name):
    """Unlike with `ancestral`, a pixel that is still noise keeps its label for the next call."""
    maps = []
    truth = torch.zeros(6, H, W, dtype=torch.int64)
    noise = SeededNoise(KEYS)
    x_T = PROCESS.prior((6, H, W), noise)
    grid = make_grid("even", PROCESS.schedule, 12)
    SAMPLERS[name](
        lambda x_t, t: PROCESS.log_onehot(truth), x_T, grid, PROCESS, noise, lambda i, t, x_t, p: maps.append(x_t)
    )
    for before, after in pairwise(maps):
        assert ((after == before) | (after == truth)).all()


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_a_corrector_draws_a_fraction_of_the_pixels_again(fraction):
    """Between the two calls at a step, `fraction` of the pixels are drawn again from q(x_t | x0), which keeps a label
    with a known probability."""
    truth, seen = torch.zeros(6, 100, 100, dtype=torch.int64), []

    def watched(x_t, t):
        seen.append((int(t[0]), x_t.clone()))
        return PROCESS.log_onehot(truth)

    noise, grid = SeededNoise(KEYS), make_grid("even", PROCESS.schedule, 5)
    out = corrector(sticky, fraction)(watched, PROCESS.prior(truth.shape, noise), grid, PROCESS, noise)
    assert out.evaluations == len(seen) == 9
    for (t, before), (again, after) in zip(seen[1::2], seen[2::2], strict=True):
        assert t == again
        keep = PROCESS.schedule.alpha_bar[t].item()
        right = (before == truth).double().mean().item()
        stays = right * (keep + (1 - keep) / L) + (1 - right) * (1 - keep) / L
        changed = int((before != after).sum())
        assert binomtest(changed, truth.numel(), fraction * (1 - stays)).pvalue > FALSE_ALARM
