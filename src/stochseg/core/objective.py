"""The training objective: the terms of the evidence lower bound (CCDM Alg. 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stochseg.core.process import CategoricalProcess

Objective = Callable[[CategoricalProcess, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(process, log_p0, x0, x_t, t, mask) -> a term a pixel, "b h w", in nats a pixel on average over t."""


def kl_terms(
    process: CategoricalProcess,
    log_p0: Tensor,
    x0: Tensor,
    x_t: Tensor,
    t: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """KL( q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t, image) ) a pixel, "b h w" (CCDM Eq. kl_div).

    At t = 1 the true posterior is one-hot at x0 and the model's is p0 itself, so the same expression is the
    negative log-likelihood of Alg. 1: alpha_bar[0] = 1 makes a special case unnecessary.

    log_p0: "b l h w", the network's log-probabilities; x0, x_t: "b h w"; t: "b" in 1..T;
    mask: "b h w", False = void, whose term is 0.
    """
    log_q = process.posterior(x_t, process.log_onehot(x0, log_p0.dtype), t, t - 1)
    log_p = process.posterior(x_t, log_p0, t, t - 1)
    # 0 log 0 = 0; only log_q can be -inf, and it carries no gradient.
    difference = torch.where(log_q > -torch.inf, log_q - log_p, 0.0)
    terms = (log_q.exp() * difference).sum(1)
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def cross_entropy_terms(
    process: CategoricalProcess, log_p0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, mask: Tensor | None = None
) -> Tensor:
    """-log p0[x0] a pixel, "b h w", at every t alike: the same optimum as the bound, another weight of the steps.

    Note: not the paper's objective. It gives the noisy steps, where a sample takes its mode, more weight.
    """
    terms = -log_p0.gather(1, x0[:, None])[:, 0]
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def mixture_terms(
    log_share: Tensor, log_p: Tensor, x0: Tensor, mask: Tensor | None, *, temperature: float = 1.0, floor: float = 0.0
) -> Tensor:
    """Loss of a mixture p0 = sum_m share_m prod_pixels p_m, "b", in nats a pixel.

    log_share: "b m"; log_p: "b m l h w"; x0, mask: "b h w". Each component is pulled to x0 by its responsibility,
    softmax of (log share + log-likelihood of the whole map) / `temperature`, mixed with a uniform `floor`: a high
    temperature and a floor early in training keep one component from taking all. Two terms are added: half the
    cross-entropy of the pixels' marginals, which keeps every pixel's probability calibrated, and 0.05 of the shares'
    cross-entropy to the responsibilities, in nats an image, without which one in thousands of nats would not count.
    """
    picked = log_p.gather(2, x0[:, None, None].expand(-1, log_p.shape[1], 1, -1, -1))[:, :, 0]
    marginal = (log_share[:, :, None, None] + picked).logsumexp(1)
    if mask is not None:
        picked, marginal = picked.masked_fill(~mask[:, None], 0.0), marginal.masked_fill(~mask, 0.0)
    likelihood = picked.sum((-2, -1))
    with torch.no_grad():
        r = torch.softmax((log_share + likelihood) / temperature, 1)
        r = (1 - floor) * r + floor / r.shape[1]
    pixels = x0[0].numel()
    return -(r * likelihood).sum(1) / pixels - 0.05 * (r * log_share).sum(1) - 0.5 * marginal.mean((-2, -1))


def prior_kl(process: CategoricalProcess, x0: Tensor) -> Tensor:
    """KL( q(x_T | x0) || uniform ) a pixel, "b h w": the term of the bound that no parameter changes."""
    t = torch.full((x0.shape[0],), process.num_timesteps)
    log_q = process.q_marginal(x0, t, torch.float64)
    return (log_q.exp() * log_q).sum(1) + torch.tensor(process.num_classes, dtype=torch.float64).log()


def _bound(
    process: CategoricalProcess, log_p0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, mask: Tensor | None
) -> Tensor:
    """`kl_terms` times T: one t is drawn for all T terms of the bound."""
    return process.num_timesteps * kl_terms(process, log_p0, x0, x_t, t, mask)


OBJECTIVES: dict[str, Objective] = {"kl": _bound, "cross-entropy": cross_entropy_terms}
