"""Muon (Jordan et al., 2024): momentum whose matrices are orthogonalized before the step.

The weight of a layer is a matrix, out × (in · kernel). Its momentum M = U S Vᵀ is replaced by about U Vᵀ, so that all
directions on which the batches agree are followed at the same speed, while Adam follows the few that dominate. The step
is scaled to the root mean square of a step of Adam (Liu et al., 2025), so that learning rates carry over. Adam updates
everything else: biases, norms, depthwise convolutions, and layers of fewer than `MIN_SIZE` rows or columns.

Note: Jordan et al. leave first and last layers of any size to Adam; here they are treated like all others.
`torch.optim.Muon` accepts parameters of two dimensions only, so no convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

MIN_SIZE = 16
"""Matrices with fewer rows or columns are updated by Adam."""

STEP_RMS = 0.2
"""Root mean square of a typical step of Adam, in learning rates."""

MOMENTUM = 0.95
BETAS, EPS = (0.9, 0.99), 1e-8
"""Constants of Adam; the short memory is for short trainings."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al.: five rounds bring singular values near 1, though not to 1."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices, Adam for the rest, with decoupled weight decay as in AdamW.

    Args:
        params: parameters or parameter groups.
        lr: learning rate of both.
        weight_decay: fraction of a weight, times lr, that is removed per step.

    >>> weight = torch.nn.Parameter(torch.zeros(16, 16))
    >>> weight.grad = torch.eye(16)
    >>> Muon([weight], lr=0.1).step()
    >>> bool(weight.diagonal().max() < 0)
    True
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters; a closure computes loss and gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update = self._muon if is_matrix(parameter) else self._adam
                    parameter.sub_(update(self.state[parameter], parameter.grad), alpha=group["lr"])
        return loss

    @staticmethod
    def _muon(state: dict[str, Tensor], gradient: Tensor) -> Tensor:
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(state["momentum"], MOMENTUM)  # Nesterov's momentum
        matrix = orthogonalize(ahead.flatten(1))
        return matrix.mul_(STEP_RMS * max(matrix.shape) ** 0.5).reshape_as(gradient)

    @staticmethod
    def _adam(state: dict[str, Tensor], gradient: Tensor) -> Tensor:
        if not state:
            state |= {"step": torch.zeros(()), "mean": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
        state["step"] += 1
        first, second = (1 - beta ** state["step"].item() for beta in BETAS)
        state["mean"].lerp_(gradient, 1 - BETAS[0])
        state["square"].lerp_(gradient.square(), 1 - BETAS[1])
        return (state["mean"] / first) / ((state["square"] / second).sqrt_() + EPS)


def is_matrix(parameter: Tensor) -> bool:
    """Whether Muon updates this parameter: the weight of a layer, with enough rows and columns."""
    if parameter.ndim < 2 or (parameter.ndim > 2 and parameter.shape[1] == 1):
        return False
    rows = len(parameter)
    return rows >= MIN_SIZE and parameter.numel() // rows >= MIN_SIZE


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate U Vᵀ of `matrix` = U S Vᵀ by the Newton–Schulz iteration.

    Singular values become 0.7 to 1.2, except those that were almost 0. The rounds multiply from the left by polynomials
    of X Xᵀ. They are computed on that small square matrix alone, and their product is applied once, which is about half
    the work for a 3×3 convolution. The squares need float32: in 16 bits this form diverges.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.mT).float()
    x = x / (x.norm() + 1e-12)
    gram = x @ x.mT
    a, b, c = NEWTON_SCHULZ
    product = one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(5):
        factor = a * one + b * gram + c * (gram @ gram)
        product = factor @ product
        gram = factor @ gram @ factor
    out: Tensor = (product @ x).to(matrix.dtype)
    return out if wide else out.mT
