"""The noise schedule: how much of the label map is left at step t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError


@dataclass(frozen=True, eq=False)
class Schedule:
    """`alpha_bar[t]`, t = 0..T, is the probability that a label survived t steps: the single source of truth.

    float64 on the CPU; `alpha_bar[0] == 1`, strictly falling, never negative. Everything else
    (alpha_t, beta_t, the coefficients of a jump) is a quotient of two of its entries.
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
        """betas: beta_1..beta_T."""
        alphas = 1.0 - torch.as_tensor(betas, dtype=torch.float64)
        return cls(torch.cat([alphas.new_ones(1), torch.cumprod(alphas, 0)]))


def cosine(num_timesteps: int = 250, s: float = 0.008, max_beta: float = 0.999) -> Schedule:
    """The cosine schedule that CCDM uses (Nichol and Dhariwal 2021, Eq. 17), beta_t capped at `max_beta`.

    The cap acts on the last step alone; it keeps alpha_bar_T above zero.
    """
    _check_steps(num_timesteps)
    u = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    f = torch.cos((u + s) / (1 + s) * math.pi / 2) ** 2
    return Schedule.from_betas((1.0 - f[1:] / f[:-1]).clamp(max=max_beta))


def linear(num_timesteps: int = 250, beta_start: float = 1e-4, beta_end: float = 0.02) -> Schedule:
    """Linearly rising betas (Ho et al. 2020), given for T=1000 and rescaled so that others end equally noisy.

    Below T=50 they end noisier, with beta_t capped at 0.999; T=1 has the first beta alone and keeps 90% of the labels.
    """
    _check_steps(num_timesteps)
    scale = 1000 / num_timesteps
    betas = torch.linspace(beta_start * scale, beta_end * scale, num_timesteps, dtype=torch.float64)
    return Schedule.from_betas(betas.clamp(max=0.999))


def _check_steps(num_timesteps: int) -> None:
    if num_timesteps < 1:
        raise UserError(f"num_timesteps (T) must be at least 1, got {num_timesteps}")


SCHEDULES = {"cosine": cosine, "linear": linear}
