"""Muon (Jordan et al., 2024): momentum whose matrices are made orthogonal before the step.

A weight of a layer is a matrix, out × (in · kernel), and its momentum M = U S Vᵀ is replaced by about U Vᵀ: every
direction that the batches agree on is taken at the same speed, where Adam follows the few that dominate. The step is
scaled to the root mean square of one of Adam's (Liu et al., 2025), so that learning rates carry over. What is no
matrix, biases, norms and depthwise convolutions, and layers of fewer than `LEAST` rows or columns are left to Adam.

Note: Jordan et al. leave first and last layers to Adam whatever their size; here they are taken like all others.
`torch.optim.Muon` takes parameters of two dimensions alone, so no convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

LEAST = 16
"""Rows and columns below which a matrix is left to Adam."""

RMS = 0.2
"""Of a step of Adam, in learning rates, as it is in practice."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al.: they bring singular values near 1 in five rounds, none of them exactly."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices, Adam for the rest; weight decay apart from the gradient, as in AdamW."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),  # of Adam; the short memory is for short trainings
        eps: float = 1e-8,
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update = self._muon if is_matrix(parameter) else self._adam
                    parameter.sub_(update(self.state[parameter], parameter.grad, group), alpha=group["lr"])
        return loss

    @staticmethod
    def _muon(state: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(state["momentum"], group["momentum"])  # Nesterov's
        matrix = orthogonal(ahead.flatten(1))
        return matrix.mul_(RMS * max(matrix.shape) ** 0.5).reshape_as(gradient)

    @staticmethod
    def _adam(state: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        if not state:
            state |= {"step": torch.zeros(()), "mean": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
        state["step"] += 1
        first, second = (1 - beta ** state["step"].item() for beta in group["betas"])
        state["mean"].lerp_(gradient, 1 - group["betas"][0])
        state["square"].lerp_(gradient.square(), 1 - group["betas"][1])
        return (state["mean"] / first) / ((state["square"] / second).sqrt_() + group["eps"])


def is_matrix(parameter: Tensor) -> bool:
    """Whether Muon takes it: a layer's weight of enough rows and columns."""
    if parameter.ndim < 2 or (parameter.ndim > 2 and parameter.shape[1] == 1):
        return False
    rows = len(parameter)
    return rows >= LEAST and parameter.numel() // rows >= LEAST


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """About U Vᵀ of `matrix` = U S Vᵀ, by Newton and Schulz's iteration: singular values of 0.7 to 1.2, but for those
    that were almost 0.

    The rounds multiply from the left by polynomials of X Xᵀ, so they are done on that small square matrix alone, and
    their product is applied once: about half the work for a 3×3 convolution. The squares need float32: in 16 bits this
    form diverges.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.mT).float()
    x = x / (x.norm() + 1e-12)
    gram = x @ x.mT
    a, b, c = NEWTON_SCHULZ
    product = one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(rounds):
        factor = a * one + b * gram + c * (gram @ gram)
        product = factor @ product
        gram = factor @ gram @ factor
    out = (product @ x).to(matrix.dtype)
    return out if wide else out.mT
