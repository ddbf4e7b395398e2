"""Time grids: the steps at which a sampler calls the network.

A grid is a strictly falling tuple of steps that starts at T; after its last entry comes t = 0. Its length is the number
of network evaluations per sample (a corrector makes more).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stochseg.core.schedule import Schedule
from stochseg.errors import UserError, lookup

Grid = tuple[int, ...]

Profile = Sequence[tuple[int, float]]
"""(t, entropy of p0 left at t), measured on samples of a trained model."""


def even(schedule: Schedule, evaluations: int, profile: Profile = ()) -> Grid:
    """Space the entries evenly from T to 1, both included: the last call sees almost no noise. A single one is T."""
    if evaluations == 1:
        return (schedule.num_timesteps,)
    span = schedule.num_timesteps - 1
    return tuple(schedule.num_timesteps - round(i * span / (evaluations - 1)) for i in range(evaluations))


def trailing(schedule: Schedule, evaluations: int, profile: Profile = ()) -> Grid:
    """Make all jumps equally long, the last one to 0: T (K - i) / K, i = 0..K-1 (the paper's every k-th node)."""
    return tuple(round(schedule.num_timesteps * (evaluations - i) / evaluations) for i in range(evaluations))


TYPICAL = (0.0, 0.042, 0.075, 0.096, 0.114, 0.131, 0.177, 0.228, 0.328, 0.5, 1.0)
"""alpha_bar where 0, 0.1, ..., 1 of the fall of entropy is done, measured on a small model of maps with four modes."""


def entropy(schedule: Schedule, evaluations: int, profile: Profile = ()) -> Grid:
    """Place each call where the entropy of p0 has fallen by another K-th of its whole fall.

    A sample takes its mode where the entropy falls: there the calls are worth their cost. Without a `profile` of the
    model, or with one that does not fall (of an untrained network), the fall is the `TYPICAL` one.
    """
    t = np.arange(schedule.num_timesteps, -1, -1, dtype=float)
    fallen = np.zeros(1)
    if profile:
        measured, left = (np.array(column, dtype=float) for column in zip(*sorted(profile), strict=True))
        fallen = np.maximum.accumulate(left[-1] - np.interp(t, measured, left))  # samples may show it rise in between
    if not fallen[-1] > 0:
        fallen = np.interp(schedule.alpha_bar.flip(0).numpy(), TYPICAL, np.arange(11) / 10)
    # A tiny slope makes the fall strict, so that it can be inverted.
    fallen = fallen / fallen[-1] + 1e-3 * (t[0] - t) / t[0]
    wanted = fallen[-1] * np.arange(evaluations) / evaluations
    return _distinct([round(value) for value in np.interp(wanted, fallen, t)], schedule.num_timesteps)


def _distinct(nodes: list[int], num_timesteps: int) -> Grid:
    """Make the nodes fall strictly from T: equal ones move down, or up where there is no room below."""
    out = [num_timesteps]
    for i, node in enumerate(nodes[1:], start=1):
        lowest = len(nodes) - i  # the nodes that follow need one step each
        out.append(max(lowest, min(out[-1] - 1, node)))
    return tuple(out)


GRIDS: dict[str, Callable[[Schedule, int, Profile], Grid]] = {"even": even, "trailing": trailing, "entropy": entropy}


def make_grid(name: str, schedule: Schedule, evaluations: int | None, profile: Profile = ()) -> Grid:
    """Build the time grid `name`.

    Args:
        name: a key of `GRIDS`.
        schedule: the noise schedule.
        evaluations: length of the grid; None is all T.
        profile: entropy profile of the model, read by the grid `entropy`.

    Returns:
        Steps that fall strictly from T.

    Raises:
        UserError: if the name is unknown or `evaluations` is not in 1..T.

    Example:
        >>> from stochseg.core import cosine
        >>> make_grid("even", cosine(250), 4)
        (250, 167, 84, 1)
    """
    grid = lookup("grid", GRIDS, name)
    evaluations = schedule.num_timesteps if evaluations is None else evaluations
    if not 1 <= evaluations <= schedule.num_timesteps:
        raise UserError(f"evaluations must be between 1 and T={schedule.num_timesteps}, got {evaluations}")
    return grid(schedule, evaluations, profile)
