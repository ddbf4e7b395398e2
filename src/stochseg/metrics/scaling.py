"""Scaling of mean probabilities, so that they agree with the frequencies of the raters' labels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics import checks
from stochseg.metrics.checks import ArrayLike

Kind = Literal["temperature", "vector"]


def scale_probabilities(mean: ArrayLike, slope: ArrayLike, bias: ArrayLike) -> Tensor:
    """Scale probabilities: softmax over the labels of slope · log p + bias. A probability of 0 stays 0.

    Args:
        mean: "b l *space" probabilities, such as `Samples.mean`.
        slope: "l", positive, of `fit_scaling`.
        bias: "l", of `fit_scaling`.

    Returns:
        "b l *space" of the type of the mean.

    Raises:
        UserError: if there is not one slope and one bias per label.

    >>> scale_probabilities(torch.tensor([[[0.9], [0.1]]]), [0.5, 0.5], [0.0, 0.0])[0, :, 0]
    tensor([0.7500, 0.2500])
    """
    mean = checks.as_tensor("mean", mean)
    a, b = (torch.as_tensor(each, dtype=torch.float64) for each in (slope, bias))
    if mean.ndim < 2 or a.shape != b.shape or a.shape != mean.shape[1:2]:
        raise UserError(
            f'scale_probabilities: expected mean "b l *space", slope "l" and bias "l", got shapes {tuple(mean.shape)}, '
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )
    shape = (1, -1, *[1] * (mean.ndim - 2))
    logits = mean.double().clamp_min(0).log() * a.view(shape) + b.view(shape)
    return logits.softmax(1).to(mean.dtype)


def fit_scaling(probabilities: Tensor, votes: Tensor, kind: Kind = "vector") -> tuple[list[float], list[float]]:
    """Fit slope and bias of `scale_probabilities` by maximum likelihood of the raters' labels.

    "temperature" has one slope for all labels and no bias. "vector" has a slope and a bias per label, which for two
    labels is beta calibration. A vote for a label of probability 0, which no scaling changes, is left out.

    Args:
        probabilities: "p l", of some pixels.
        votes: "p l", the (weighted) number of raters who gave the pixel this label.
        kind: "temperature" or "vector".

    Returns:
        Slope and bias per label.

    Raises:
        UserError: if there are no votes, or the kind is unknown.

    >>> p = torch.tensor([[0.99, 0.01], [0.01, 0.99]])
    >>> slope, bias = fit_scaling(p, torch.tensor([[9, 1], [1, 9]]), "temperature")
    >>> round(scale_probabilities(p, slope, bias)[0, 0].item(), 3)  # 9 of 10 agree
    0.9
    """
    if kind not in ("temperature", "vector"):
        raise UserError(f"scaling: expected temperature or vector, got {kind!r}")
    labels = probabilities.shape[1]
    p, counted = probabilities.double(), votes.double() * (probabilities > 0)
    rows = counted.sum(1) > 0
    if not bool(rows.any()):
        raise UserError("fit_scaling: expected pixels with votes for labels of a probability above 0, got none")
    p, counted = p[rows], counted[rows]
    log_p = p.clamp_min(torch.finfo(torch.float64).tiny).log()
    impossible, total = p <= 0, counted.sum()
    log_slope = torch.zeros(1 if kind == "temperature" else labels, dtype=torch.float64, requires_grad=True)
    free_bias = torch.zeros(labels - 1, dtype=torch.float64, requires_grad=kind == "vector")

    def bias() -> Tensor:
        return torch.cat([free_bias.new_zeros(1), free_bias])

    def loss() -> Tensor:
        logits = (log_p * log_slope.exp() + bias()).masked_fill(impossible, -torch.inf)
        return -(logits.log_softmax(1).masked_fill(impossible, 0) * counted).sum() / total

    parameters = [log_slope, free_bias] if kind == "vector" else [log_slope]
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    slope = log_slope.detach().exp().expand(labels)
    return slope.tolist(), bias().detach().tolist()
