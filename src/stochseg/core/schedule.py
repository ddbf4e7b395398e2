"""Noise schedules: the probability alpha_bar_t that a label survives t steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError


@dataclass(frozen=True, eq=False)
class Schedule:
    """The table `alpha_bar[t]`, t = 0..T: the single source of every coefficient of the process.

    float64 on the CPU; `alpha_bar[0] == 1`, strictly falling, never negative. alpha_t, beta_t and the coefficients of
    a jump are quotients of two of its entries.

    Args:
        alpha_bar: "T+1", the probability that a label survived t steps.

    Raises:
        UserError: if the table does not start at 1, does not fall strictly or becomes negative.

    Example:
        >>> Schedule(torch.tensor([1.0, 0.5, 0.1])).num_timesteps
        2
    """

    alpha_bar: Tensor

    def __post_init__(self) -> None:
        table = torch.as_tensor(self.alpha_bar, dtype=torch.float64).cpu()
        if table.ndim != 1 or len(table) < 2:
            raise UserError(f'alpha_bar "T+1": expected one axis of at least 2 entries, got {tuple(table.shape)}')
        if table[0] != 1.0:
            raise UserError(f"alpha_bar[0] must be exactly 1 (no noise at t=0), got {table[0].item()!r}")
        if not bool((table[1:] < table[:-1]).all()) or not table[-1] >= 0:
            raise UserError("alpha_bar must fall strictly from 1 and stay >= 0; check the betas it comes from")
        object.__setattr__(self, "alpha_bar", table)

    @property
    def num_timesteps(self) -> int:
        """T."""
        return len(self.alpha_bar) - 1

    @property
    def alpha(self) -> Tensor:
        """alpha_t for t = 0..T with alpha_0 = 1, so that the index is the paper's t."""
        return torch.cat([self.alpha_bar[:1], self.alpha_bar[1:] / self.alpha_bar[:-1]])

    @property
    def beta(self) -> Tensor:
        """beta_t = 1 - alpha_t for t = 0..T (beta_0 = 0)."""
        return 1.0 - self.alpha

    @classmethod
    def from_betas(cls, betas: Tensor) -> Schedule:
        """Build the schedule of beta_1..beta_T."""
        alphas = 1.0 - torch.as_tensor(betas, dtype=torch.float64)
        return cls(torch.cat([alphas.new_ones(1), torch.cumprod(alphas, 0)]))

    def at(self, t: Tensor) -> Tensor:
        """alpha_bar_t of the steps t "b", float64 on the CPU. Copying t from another device waits for it."""
        return self.alpha_bar[t.cpu()]

    def check_jump(self, t: Tensor, s: Tensor) -> None:
        """Raise a `UserError` unless 0 <= s < t <= T in every row. t, s: "b" integers."""
        if not bool(((s >= 0) & (s < t) & (t <= self.num_timesteps)).all()):
            raise UserError(f"a jump needs 0 <= s < t <= {self.num_timesteps}, got t={t.tolist()}, s={s.tolist()}")


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Prepare one value per row, "b", to meet the tensor `like` "b ...": "b 1 1 ..." on its device.

    Floats take the dtype of `like`. They stay float64 until here because float32 coefficients cost five digits.
    """
    dtype = like.dtype if values.is_floating_point() else values.dtype
    return values.to(device=like.device, dtype=dtype).view(-1, *[1] * (like.ndim - 1))


def cosine(num_timesteps: int = 250, s: float = 0.008, max_beta: float = 0.999) -> Schedule:
    """Build the cosine schedule that CCDM uses (Nichol and Dhariwal 2021, Eq. 17).

    Args:
        num_timesteps: T.
        s: offset that keeps the first betas from being too small.
        max_beta: cap of beta_t. It acts on the last step only and keeps alpha_bar_T above zero.

    Returns:
        The schedule.

    Example:
        >>> [round(keep, 3) for keep in cosine(250).alpha_bar[[0, 125, 249]].tolist()]
        [1.0, 0.494, 0.0]
    """
    _check_num_timesteps(num_timesteps)
    f = _squared_cosine(num_timesteps, s)
    return Schedule.from_betas((1.0 - f[1:] / f[:-1]).clamp(max=max_beta))


def cosine_released(num_timesteps: int = 250, s: float = 0.008) -> Schedule:
    """Build the table with which the CCDM authors' released code noised its training data, for their checkpoints.

    The cosine of step t - 1 stands at step t, and nothing divides by its value at 0. A network knows the noise that it
    was trained with, so that its samples are right with this table and not with `cosine`.

    Note: the released code samples with the betas of `cosine`, which are not the quotients of this table. Here every
    coefficient is.

    Args:
        num_timesteps: T.
        s: offset of the cosine.

    Returns:
        The schedule.

    Example:
        >>> [round(keep, 3) for keep in cosine_released(250).alpha_bar[[0, 126, 250]].tolist()]
        [1.0, 0.494, 0.0]
    """
    _check_num_timesteps(num_timesteps)
    return Schedule(torch.cat([torch.ones(1, dtype=torch.float64), _squared_cosine(num_timesteps, s)[:-1]]))


def linear(num_timesteps: int = 250, beta_start: float = 1e-4, beta_end: float = 0.02) -> Schedule:
    """Build the schedule of linearly rising betas (Ho et al. 2020).

    The betas are those for T = 1000, rescaled so that every T ends equally noisy. Below T = 50 it ends noisier, with
    beta_t capped at 0.999; T = 1 has only the first beta and keeps 90% of the labels.

    Args:
        num_timesteps: T.
        beta_start: beta_1 at T = 1000.
        beta_end: beta_T at T = 1000.

    Returns:
        The schedule.
    """
    _check_num_timesteps(num_timesteps)
    scale = 1000 / num_timesteps
    betas = torch.linspace(beta_start * scale, beta_end * scale, num_timesteps, dtype=torch.float64)
    return Schedule.from_betas(betas.clamp(max=0.999))


def straight(num_timesteps: int = 250) -> Schedule:
    """Build alpha_bar_t = 1 - t/T, the schedule of masked diffusion (`MaskedProcess`).

    Args:
        num_timesteps: T.

    Returns:
        The schedule.

    Example:
        >>> straight(4).alpha_bar.tolist()
        [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    _check_num_timesteps(num_timesteps)
    return Schedule(1.0 - torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps)


def _squared_cosine(num_timesteps: int, s: float) -> Tensor:
    """Values at t = 0..T; the first is slightly below 1."""
    u = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    return torch.cos((u + s) / (1 + s) * math.pi / 2) ** 2


def _check_num_timesteps(num_timesteps: int) -> None:
    if num_timesteps < 1:
        raise UserError(f"num_timesteps (T) must be at least 1, got {num_timesteps}")


SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "cosine": cosine,
    "cosine-released": cosine_released,
    "linear": linear,
}
