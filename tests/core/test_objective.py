"""Training objectives: finite gradients for any logits, gradients against finite differences, the mask."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stochseg.core import (
    OBJECTIVES,
    CategoricalProcess,
    cosine,
    cross_entropy_terms,
    kl_terms,
    linear,
    mixture_terms,
    prior_kl,
)

T = 250


def process(num_classes: int) -> CategoricalProcess:
    return CategoricalProcess(cosine(T), num_classes)


def labels(num_classes: int, seed: int, rows: int = 3) -> torch.Tensor:
    return torch.randint(num_classes, (rows, 4, 5), generator=torch.Generator().manual_seed(seed))


def steps(*t: int) -> torch.Tensor:
    return torch.tensor(t)


@pytest.mark.parametrize("num_classes", [2, 20])
@pytest.mark.parametrize("scale", [100.0, 1e4])
@pytest.mark.parametrize("favored", ["right", "wrong", "random"])
def test_gradients_are_finite_for_any_logits(num_classes, scale, favored):
    """At t = 1, 2 and T, with x_t equal to x0 and not, for logits as extreme as float32 allows."""
    x0 = labels(num_classes, 0)
    for x_t in (x0, (x0 + 1) % num_classes):
        if favored == "random":
            logits = scale * torch.randn(3, num_classes, 4, 5, generator=torch.Generator().manual_seed(1))
        else:
            target = x0 if favored == "right" else (x0 + 1) % num_classes
            logits = scale * F.one_hot(target, num_classes).permute(0, 3, 1, 2).float()
        logits.requires_grad_()
        terms = kl_terms(process(num_classes), torch.log_softmax(logits, 1), x0, x_t, steps(1, 2, T))
        assert bool(torch.isfinite(terms).all())
        terms.sum().backward()
        assert bool(torch.isfinite(logits.grad).all())
        if favored == "wrong":
            assert terms[0].min().item() == pytest.approx(scale, rel=1e-6)
            assert logits.grad[0].abs().max().item() == pytest.approx(
                1.0, rel=1e-6
            )  # cross-entropy pulls at full strength


@pytest.mark.parametrize("schedule", [cosine(6), linear(6)], ids=["cosine", "linear"])
@pytest.mark.parametrize("first", [1, 2])
def test_gradient_is_the_finite_difference(schedule, first):
    """At every t, in a batch with and without the first step, which is the one that ends at x0."""
    t = torch.arange(first, 7)
    p = CategoricalProcess(schedule, 3)
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(len(t), 3, 2, 2, generator=generator, dtype=torch.float64)
    x0, x_t = (torch.randint(3, (len(t), 2, 2), generator=generator) for _ in range(2))

    def loss(values: torch.Tensor) -> torch.Tensor:
        return kl_terms(p, torch.log_softmax(values, 1), x0, x_t, t)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_(), eps=1e-6, atol=1e-7, rtol=1e-6)


def test_the_mask_removes_terms_and_gradients_exactly():
    num_classes = 5
    x0, x_t = labels(num_classes, 0), labels(num_classes, 1)
    mask = labels(2, 2).bool()
    assert 0 < mask.sum() < mask.numel()
    logits = 10 * torch.randn(3, num_classes, 4, 5, generator=torch.Generator().manual_seed(4))

    def run(with_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        values = logits.clone().requires_grad_()
        terms = kl_terms(process(num_classes), torch.log_softmax(values, 1), x0, x_t, steps(1, 60, T), with_mask)
        terms.sum().backward()
        return terms.detach(), values.grad

    (masked, masked_grad), (full, full_grad) = run(mask), run(None)
    assert torch.equal(masked, full * mask)
    assert bool((full[~mask] > 0).any())
    assert torch.equal(masked_grad, torch.where(mask[:, None], full_grad, 0.0))
    assert bool((full_grad * ~mask[:, None] != 0).any())


def test_the_mask_removes_even_an_infinite_term():
    p = process(2)
    x0 = torch.zeros(1, 1, 2, dtype=torch.int64)
    terms = kl_terms(p, p.log_onehot(1 - x0), x0, x0, steps(1), torch.tensor([[[True, False]]]))
    assert terms.flatten().tolist() == [math.inf, 0.0]


@pytest.mark.parametrize("num_classes", [2, 20])
def test_terms_are_never_negative(num_classes):
    """In float32, up to rounding, also near the truth, where the terms of the divergence cancel."""
    x0, x_t = labels(num_classes, 0, rows=T), labels(num_classes, 1, rows=T)
    truth = F.one_hot(x0, num_classes).permute(0, 3, 1, 2).float()
    generator = torch.Generator().manual_seed(5)
    for sure, spread in itertools.product((0.0, 3.0, 12.0), (0.0, 1.0)):
        logits = sure * truth + spread * torch.randn(truth.shape, generator=generator)
        terms = kl_terms(process(num_classes), torch.log_softmax(logits, 1), x0, x_t, torch.arange(1, T + 1))
        assert terms.min() >= -1e-6


def test_a_certain_and_correct_prediction_costs_nothing():
    p = process(4)
    x0, x_t = labels(4, 0, rows=T), labels(4, 1, rows=T)
    terms = kl_terms(p, p.log_onehot(x0), x0, x_t, torch.arange(1, T + 1))
    assert torch.equal(terms, torch.zeros_like(terms))


@pytest.mark.parametrize("num_classes", [2, 20])
def test_the_first_step_is_the_cross_entropy(num_classes):
    x0, x_t = labels(num_classes, 0), labels(num_classes, 1)
    logits = 5 * torch.randn(3, num_classes, 4, 5, generator=torch.Generator().manual_seed(6))
    terms = kl_terms(process(num_classes), torch.log_softmax(logits, 1), x0, x_t, steps(1, 1, 1))
    torch.testing.assert_close(terms, F.cross_entropy(logits, x0, reduction="none"), atol=1e-6, rtol=1e-6)


def test_each_row_has_its_own_step():
    p = process(4)
    x0, x_t = labels(4, 0), labels(4, 1)
    log_p0 = torch.log_softmax(torch.randn(3, 4, 4, 5, generator=torch.Generator().manual_seed(7)), 1)
    together = kl_terms(p, log_p0, x0, x_t, steps(1, 90, T))
    for i, t in enumerate((1, 90, T)):
        row = slice(i, i + 1)
        torch.testing.assert_close(together[row], kl_terms(p, log_p0[row], x0[row], x_t[row], steps(t)))


def test_prior_term_is_the_divergence_from_uniform():
    p = CategoricalProcess(linear(20), 4)
    keep = p.schedule.alpha_bar[20].item()
    other, same = (1 - keep) / 4, (1 - keep) / 4 + keep
    want = 3 * other * math.log(4 * other) + same * math.log(4 * same)
    got = prior_kl(p, torch.tensor([[[0, 3]]]))
    assert got.flatten().tolist() == pytest.approx([want, want], abs=1e-14)
    assert prior_kl(process(4), torch.zeros(1, 1, 1, dtype=torch.int64)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_least_at_the_true_posterior(name):
    """L = 3, one pixel: of all p0, the expected term over x0 and x_t is least at p(x0 | x_t), for every t."""
    small = CategoricalProcess(cosine(6), 3)
    data = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    for t in range(1, 7):
        joint = (
            data[:, None]
            * small.q_marginal(torch.arange(3)[:, None, None], steps(t, t, t), torch.float64)[..., 0, 0].exp()
        )
        for x_t in range(3):
            truth = joint[:, x_t] / joint[:, x_t].sum()
            log_p0 = truth.log().clone().requires_grad_()
            expected = sum(
                truth[x0]
                * OBJECTIVES[name](
                    small,
                    torch.log_softmax(log_p0, 0)[None, :, None, None],
                    torch.tensor([[[x0]]]),
                    torch.tensor([[[x_t]]]),
                    steps(t),
                    None,
                ).sum()
                for x0 in range(3)
            )
            (gradient,) = torch.autograd.grad(expected, log_p0, create_graph=True)
            assert gradient.abs().max() < 1e-12
            curvature = torch.stack([torch.autograd.grad(g, log_p0, retain_graph=True)[0] for g in gradient])
            assert torch.linalg.eigvalsh(curvature)[1] > 0, "a minimum, up to adding one constant to all logits"


def test_the_objective_kl_stands_for_the_terms_of_all_steps():
    """The mean over t of the objective "kl" is the sum over t of the KL terms."""
    p, x0 = process(4), labels(4, 0)
    log_p0 = torch.log_softmax(torch.randn(3, 4, 4, 5, generator=torch.Generator().manual_seed(2)), 1)
    arguments = (p, log_p0, x0, labels(4, 1), steps(3, 60, 250))
    torch.testing.assert_close(OBJECTIVES["kl"](*arguments, None), T * kl_terms(*arguments))


def test_cross_entropy_terms_are_the_cross_entropy_without_void():
    p, x0 = process(4), labels(4, 0)
    logits = torch.randn(3, 4, 4, 5, generator=torch.Generator().manual_seed(3))
    mask = labels(2, 4).bool()
    got = cross_entropy_terms(p, torch.log_softmax(logits, 1), x0, labels(4, 1), steps(3, 60, 250), mask)
    torch.testing.assert_close(got, F.cross_entropy(logits, x0, reduction="none") * mask)


def by_hand_mixture(log_weight, log_p, x0, mask, temperature, floor):
    """One row at a time, one pixel at a time."""
    rows, components = log_weight.shape
    out = []
    for b in range(rows):
        fit = torch.zeros(components, dtype=torch.float64)
        marginal = 0.0
        for pixel in np.ndindex(*x0.shape[1:]):
            if mask is not None and not mask[(b, *pixel)]:
                continue
            at = log_p[(b, slice(None), x0[(b, *pixel)], *pixel)]
            fit += at
            marginal += (log_weight[b].exp() * at.exp()).sum().log()
        scaled = ((log_weight[b] + fit) / temperature).double()
        r = (1 - floor) * torch.exp(scaled - scaled.max()) / torch.exp(scaled - scaled.max()).sum() + floor / components
        pixels = x0[0].numel()
        out.append(-(r * fit).sum() / pixels - 0.05 * (r * log_weight[b]).sum() - 0.5 * marginal / pixels)
    return torch.stack(out)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("temperature", "floor"), [(1.0, 0.0), (30.0, 0.1)])
@pytest.mark.parametrize("space", [(30,), (5, 6), (5, 2, 3)])
def test_mixture_terms_are_the_sum_written_out(masked, temperature, floor, space):
    g = torch.Generator().manual_seed(0)
    log_weight = torch.randn(2, 3, generator=g, dtype=torch.float64).log_softmax(1)
    log_p = torch.randn(2, 3, 4, *space, generator=g, dtype=torch.float64).log_softmax(2)
    x0 = torch.randint(4, (2, *space), generator=g)
    mask = torch.rand(2, *space, generator=g) < 0.6 if masked else None
    terms = mixture_terms(log_weight, log_p, x0, mask, temperature=temperature, floor=floor)
    expected = by_hand_mixture(log_weight, log_p, x0, mask, temperature, floor)
    torch.testing.assert_close(terms, expected, rtol=1e-12, atol=1e-12)


def test_one_component_costs_its_cross_entropy():
    """Weight 1 for the component and 1/2 for the marginals, which are the same here."""
    log_p = torch.randn(2, 1, 3, 4, 4, dtype=torch.float64).log_softmax(2)
    x0 = torch.randint(3, (2, 4, 4))
    plain = -log_p[:, 0].gather(1, x0[:, None]).mean((1, 2, 3))
    torch.testing.assert_close(mixture_terms(torch.zeros(2, 1, dtype=torch.float64), log_p, x0, None), 1.5 * plain)


def test_two_modes_become_two_components():
    """Whole maps, all 0 or all 1, with odds 3 to 1: plain gradient descent finds both modes and their weights."""
    torch.manual_seed(0)
    share, logits = torch.zeros(2, requires_grad=True), (0.1 * torch.randn(2, 2, 4, 4)).requires_grad_()
    x0 = torch.tensor([0, 0, 0, 1])[:, None, None].expand(4, 4, 4)
    optimizer = torch.optim.Adam([share, logits], lr=0.05)
    for step in range(400):
        done = min(1.0, step / 100)
        terms = mixture_terms(
            share.log_softmax(0).expand(4, 2),
            logits.log_softmax(1).expand(4, 2, 2, 4, 4),
            x0,
            None,
            temperature=30 ** (1 - done),
            floor=0.1 * (1 - done),
        )
        optimizer.zero_grad()
        terms.mean().backward()
        optimizer.step()
    ones = logits.softmax(1)[:, 1].mean((1, 2))
    first = int(ones.argmin())
    assert ones[first] < 0.05
    assert ones[1 - first] > 0.95
    assert share.softmax(0)[first].item() == pytest.approx(0.75, abs=0.03)
