"""Time grids: at which steps a sampler calls the network.

A grid is a falling tuple of steps that begins at T; after its last entry comes t = 0. Its length is the
number of network evaluations.
"""

from __future__ import annotations

from collections.abc import Callable

from stochseg.core.schedule import Schedule
from stochseg.errors import UserError, unknown_name

Grid = tuple[int, ...]


def even(schedule: Schedule, steps: int) -> Grid:
    """Evenly spaced from T to 1, both included: the last call sees almost no noise. One step is (T,)."""
    if steps == 1:
        return (schedule.num_steps,)
    span = schedule.num_steps - 1
    return tuple(schedule.num_steps - round(i * span / (steps - 1)) for i in range(steps))


def trailing(schedule: Schedule, steps: int) -> Grid:
    """T (K - i) / K, i = 0..K-1: every jump equally long, the last one to 0 (the paper's every k-th node)."""
    return tuple(round(schedule.num_steps * (steps - i) / steps) for i in range(steps))


GRIDS: dict[str, Callable[[Schedule, int], Grid]] = {"even": even, "trailing": trailing}


def make_grid(name: str, schedule: Schedule, steps: int | None) -> Grid:
    """The grid `name` with `steps` calls; None means all T."""
    if name not in GRIDS:
        raise unknown_name("grid", name, GRIDS)
    steps = schedule.num_steps if steps is None else steps
    if not 1 <= steps <= schedule.num_steps:
        raise UserError(f"steps must be between 1 and T={schedule.num_steps}, got {steps}")
    return GRIDS[name](schedule, steps)
