"""Every grid of the registry falls strictly from T; `even` and `trailing` are also evenly spaced."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochseg.core import GRIDS, cosine, linear, make_grid
from stochseg.errors import UserError

lengths = st.integers(1, 600).flatmap(lambda t: st.tuples(st.just(t), st.integers(1, t)))


def schedule(num_timesteps: int):
    return linear(num_timesteps)


@pytest.mark.parametrize("name", GRIDS)
@settings(deadline=None, derandomize=True)
@given(lengths=lengths)
def test_a_grid_falls_strictly_from_T_and_has_the_requested_length(name, lengths):
    num_timesteps, calls = lengths
    grid = make_grid(name, schedule(num_timesteps), calls)
    assert grid[0] == num_timesteps
    assert len(grid) == calls
    assert all(type(t) is int for t in grid)
    assert all(a > b for a, b in pairwise(grid))
    assert grid[-1] >= 1


@pytest.mark.parametrize("name", GRIDS)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(num_timesteps=st.integers(1, 600))
def test_all_T_calls_visit_every_step(name, num_timesteps):
    every = tuple(range(num_timesteps, 0, -1))
    assert make_grid(name, schedule(num_timesteps), num_timesteps) == every
    assert make_grid(name, schedule(num_timesteps), None) == every


@settings(deadline=None, derandomize=True)
@given(lengths=lengths)
def test_even_ends_at_one_and_trailing_jumps_to_zero_like_the_others(lengths):
    num_timesteps, calls = lengths
    even = make_grid("even", schedule(num_timesteps), calls)
    assert even[-1] == (1 if calls > 1 else num_timesteps)
    for grid in (even, (*make_grid("trailing", schedule(num_timesteps), calls), 0)):
        jumps = [a - b for a, b in pairwise(grid)]
        assert not jumps or max(jumps) - min(jumps) <= 1


def test_two_grids_by_hand():
    assert make_grid("even", cosine(250), 4) == (250, 167, 84, 1)
    assert make_grid("trailing", cosine(250), 5) == (250, 200, 150, 100, 50)


def test_entropy_puts_calls_where_a_measured_profile_falls():
    """The entropy falls evenly between t = 200 and 150, where all calls after the first must be."""
    profile = ((250, 1.0), (200, 1.0), (150, 0.0), (1, 0.0))
    grid = make_grid("entropy", cosine(250), 5, profile)
    assert grid[0] == 250
    for got, expected in zip(grid[1:], (190, 180, 170, 160), strict=True):
        assert abs(got - expected) <= 1
    # The order of the entries and the unit of the entropy do not matter.
    assert make_grid("entropy", cosine(250), 5, tuple((t, 7 * h) for t, h in reversed(profile))) == grid


def test_entropy_without_a_profile_prefers_noisy_steps():
    """The typical fall: half of it at alpha_bar 0.13, which is t = 191 of the cosine schedule."""
    grid = make_grid("entropy", cosine(250), 10)
    assert abs(grid[5] - 191) <= 2
    assert sum(t > 125 for t in grid) >= 9


@settings(deadline=None, derandomize=True)
@given(lengths=lengths, values=st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_entropy_takes_any_profile_and_ignores_one_that_does_not_fall(lengths, values):
    num_timesteps, calls = lengths
    profile = tuple((round(i * num_timesteps / (len(values) - 1)), v) for i, v in enumerate(values))
    grid = make_grid("entropy", schedule(num_timesteps), calls, profile)
    if values[-1] <= min(values):  # the values are by rising t
        assert grid == make_grid("entropy", schedule(num_timesteps), calls)
    assert (grid[0], len(grid)) == (num_timesteps, calls)
    assert all(a > b for a, b in pairwise((*grid, 0)))


@pytest.mark.parametrize("evaluations", [0, -1, 251])
def test_an_impossible_length_raises(evaluations):
    with pytest.raises(UserError, match=f"between 1 and T=250, got {evaluations}"):
        make_grid("even", cosine(250), evaluations)


def test_an_unknown_grid_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown grid 'odd'; known: .*even, .*trailing"):
        make_grid("odd", cosine(250), 5)
