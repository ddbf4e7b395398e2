"""Every grid of the registry is a falling path from T; the two named ones are also evenly spaced."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochseg.core import GRIDS, cosine, linear, make_grid
from stochseg.errors import UserError

lengths = st.integers(1, 600).flatmap(lambda t: st.tuples(st.just(t), st.integers(1, t)))


def schedule(num_steps: int):
    return linear(num_steps)


@pytest.mark.parametrize("name", GRIDS)
@settings(deadline=None, derandomize=True)
@given(lengths=lengths)
def test_a_grid_falls_strictly_from_T_in_K_steps(name, lengths):
    num_steps, calls = lengths
    grid = make_grid(name, schedule(num_steps), calls)
    assert grid[0] == num_steps
    assert len(grid) == calls
    assert all(type(t) is int for t in grid)
    assert all(a > b for a, b in pairwise(grid))
    assert grid[-1] >= 1


@pytest.mark.parametrize("name", GRIDS)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(num_steps=st.integers(1, 600))
def test_all_T_calls_visit_every_step(name, num_steps):
    every = tuple(range(num_steps, 0, -1))
    assert make_grid(name, schedule(num_steps), num_steps) == every
    assert make_grid(name, schedule(num_steps), None) == every


@settings(deadline=None, derandomize=True)
@given(lengths=lengths)
def test_even_ends_at_one_and_trailing_jumps_to_zero_like_the_others(lengths):
    num_steps, calls = lengths
    even = make_grid("even", schedule(num_steps), calls)
    assert even[-1] == (1 if calls > 1 else num_steps)
    for grid in (even, (*make_grid("trailing", schedule(num_steps), calls), 0)):
        jumps = [a - b for a, b in pairwise(grid)]
        assert not jumps or max(jumps) - min(jumps) <= 1


def test_the_papers_length_by_hand():
    assert make_grid("even", cosine(250), 4) == (250, 167, 84, 1)
    assert make_grid("trailing", cosine(250), 5) == (250, 200, 150, 100, 50)


@pytest.mark.parametrize("steps", [0, -1, 251])
def test_an_impossible_number_of_calls_is_refused(steps):
    with pytest.raises(UserError, match=f"between 1 and T=250, got {steps}"):
        make_grid("even", cosine(250), steps)


def test_an_unknown_grid_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown grid 'odd'; known: .*even, trailing"):
        make_grid("odd", cosine(250), 5)
