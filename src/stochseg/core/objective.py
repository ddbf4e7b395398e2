"""Training objectives: the terms of the evidence lower bound (CCDM Eq. kl_div, Alg. 1) and their alternatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stochseg.core.process import CategoricalProcess

Objective = Callable[[CategoricalProcess, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(process, log_p0, x0, x_t, t, mask) -> one term per pixel, "b *space"; its mean over t is in nats per pixel."""


def kl_terms(
    process: CategoricalProcess, log_p0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Compute KL( q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t, image) ) per pixel (CCDM Eq. kl_div).

    At t = 1 the true posterior is one-hot at x0 and the model's is p0 itself, so the same expression is the negative
    log-likelihood of Alg. 1: alpha_bar[0] = 1 makes a special case unnecessary.

    Args:
        process: the diffusion process.
        log_p0: "b l *space", the network's log-probabilities of x0.
        x0: "b *space" labels.
        x_t: "b *space" labels.
        t: "b" in 1..T.
        mask: "b *space" bool, False = void, whose term is 0.

    Returns:
        "b *space" in nats.
    """
    t = t.cpu()
    log_q = process.posterior(x_t, process.log_onehot(x0, log_p0.dtype), t, t - 1)  # Eq. q_params
    log_p = process.posterior(x_t, log_p0, t, t - 1)  # Eq. p_params
    # 0 log 0 = 0; only log_q can be -inf, and it carries no gradient.
    difference = torch.where(log_q > -torch.inf, log_q - log_p, 0.0)
    terms = (log_q.exp() * difference).sum(1)
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def cross_entropy_terms(
    process: CategoricalProcess, log_p0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Compute -log p0[x0] per pixel, with equal weights of all t. Its optimum is that of the bound.

    Note: not the paper's objective. It gives the noisy steps, where a sample takes its mode, more weight.

    Args:
        process: the diffusion process.
        log_p0: "b l *space", the network's log-probabilities of x0.
        x0: "b *space" labels.
        x_t: "b *space", not used.
        t: "b", not used.
        mask: "b *space" bool, False = void, whose term is 0.

    Returns:
        "b *space" in nats.
    """
    terms = -log_p0.gather(1, x0[:, None])[:, 0]
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def mixture_terms(
    log_weight: Tensor, log_p: Tensor, x0: Tensor, mask: Tensor | None, *, temperature: float = 1.0, floor: float = 0.0
) -> Tensor:
    """Compute the loss of a mixture p0 = sum_m weight_m prod_pixels p_m.

    Each component is pulled to x0 by its responsibility: the softmax of (log weight + log-likelihood of the whole map)
    / `temperature`, mixed with a uniform `floor`. Two terms are added: half the cross-entropy of the pixels' marginals,
    which keeps the probability of every pixel calibrated, and 0.05 of the cross-entropy of the weights to the
    responsibilities, in nats per image; divided by the number of pixels it would be negligible.

    Args:
        log_weight: "b m", the log-probability of each component.
        log_p: "b m l *space", the log-probabilities of x0 under each component.
        x0: "b *space" labels.
        mask: "b *space" bool, False = void.
        temperature: above 1 it keeps one component from taking all early in training.
        floor: fraction of the responsibility that all components share equally, for the same purpose.

    Returns:
        "b" in nats per pixel.
    """
    at_x0 = x0[:, None, None].expand(-1, log_p.shape[1], 1, *x0.shape[1:])
    picked = log_p.gather(2, at_x0).flatten(2)  # "b m p"
    marginal = (log_weight[:, :, None] + picked).logsumexp(1)
    if mask is not None:
        void = ~mask.flatten(1)
        picked, marginal = picked.masked_fill(void[:, None], 0.0), marginal.masked_fill(void, 0.0)
    likelihood = picked.sum(-1)
    with torch.no_grad():
        r = torch.softmax((log_weight + likelihood) / temperature, 1)
        r = (1 - floor) * r + floor / r.shape[1]
    pixels = x0[0].numel()
    return -(r * likelihood).sum(1) / pixels - 0.05 * (r * log_weight).sum(1) - 0.5 * marginal.mean(-1)


def prior_kl(process: CategoricalProcess, x0: Tensor) -> Tensor:
    """Compute KL( q(x_T | x0) || p(x_T) ) per pixel, the last term of CCDM Eq. elbo_third.

    It does not depend on the network, so training leaves it out.

    Args:
        process: the diffusion process.
        x0: "b *space" labels.

    Returns:
        "b *space" float64 in nats.
    """
    t = torch.full((x0.shape[0],), process.num_timesteps)
    log_q = process.q_marginal(x0, t, torch.float64)
    log_prior = process.log_prior().to(log_q.device).view(-1, *[1] * (x0.ndim - 1))
    difference = torch.where(log_q > -torch.inf, log_q - log_prior, 0.0)
    return (log_q.exp() * difference).sum(1)


def _bound(
    process: CategoricalProcess, log_p0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, mask: Tensor | None
) -> Tensor:
    """Multiply `kl_terms` by T, because one drawn t stands for all T terms of the bound."""
    return process.num_timesteps * kl_terms(process, log_p0, x0, x_t, t, mask)


OBJECTIVES: dict[str, Objective] = {"kl": _bound, "cross-entropy": cross_entropy_terms}
