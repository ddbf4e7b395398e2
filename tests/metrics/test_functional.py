"""GED, diversity and HM-IoU against slow references, written with loops over pairs of maps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from stochseg.metrics import (
    diversity,
    diversity_from_iou,
    functional,
    ged,
    ged_from_iou,
    hm_iou,
    hm_iou_from_iou,
    iou_blocks,
    pairwise_iou,
)
from tests.support.label_maps import classes, few_examples, map_weights, maps, seeds, sizes, slow_iou, spaces


def slow_distance(first: Tensor, second: Tensor, num_classes: int, w: list[float], v: list[float]) -> float:
    """Weighted mean distance of all pairs of two sets "n *space", self pairs included."""
    return math.fsum(
        p * q * (1 - slow_iou(s, y, num_classes))
        for p, s in zip(w, first, strict=True)
        for q, y in zip(v, second, strict=True)
    )


def slow_within(samples: Tensor, num_classes: int, w: list[float]) -> float:
    """Weighted mean distance of all pairs of two different samples."""
    pairs = list(itertools.permutations(range(len(samples)), 2))
    total = math.fsum(w[i] * w[j] * (1 - slow_iou(samples[i], samples[j], num_classes)) for i, j in pairs)
    return total / math.fsum(w[i] * w[j] for i, j in pairs)


def normalized(weights: Tensor | None, n: int) -> list[float]:
    if weights is None:
        return [1 / n] * n
    values = weights.double().tolist()
    return [value / math.fsum(values) for value in values]


def slow_ged(s: Tensor, y: Tensor, num_classes: int, w: list[float], v: list[float], unbiased: bool) -> float:
    within = slow_within(s, num_classes, w) if unbiased else slow_distance(s, s, num_classes, w, w)
    return 2 * slow_distance(s, y, num_classes, w, v) - slow_distance(y, y, num_classes, v, v) - within


def slow_hm_iou(samples: Tensor, raters: Tensor, num_classes: int) -> float:
    """The best of all permutations of the repeated sets."""
    size = math.lcm(len(samples), len(raters))
    iou = [[slow_iou(s, y, num_classes) for y in raters] for s in samples]
    return max(
        sum(iou[i % len(samples)][j % len(raters)] for i, j in enumerate(order)) / size
        for order in itertools.permutations(range(size))
    )


# --- GED and diversity -----------------------------------------------------------------------------------


@few_examples
@given(
    seeds,
    st.integers(2, 5),
    sizes,
    classes,
    st.booleans(),
    st.sampled_from([(False, False), (True, False), (False, True), (True, True)]),
    spaces,
)
def test_ged_and_diversity_equal_loops_over_pairs(
    seed: int, n: int, k: int, num_classes: int, unbiased: bool, weighted: tuple[bool, bool], space: tuple[int, ...]
):
    samples, raters = maps(seed, 2, n, num_classes, space), maps(seed + 1, 2, k, num_classes, space)
    weights = map_weights(seed, 2, n) if weighted[0] else None
    if weights is not None:
        weights[:, 1] += 0.1  # two samples with weight, for the unbiased form
    rater_weights = map_weights(seed + 1, 2, k) if weighted[1] else None
    got = ged(samples, raters, num_classes, weights=weights, rater_weights=rater_weights, unbiased=unbiased)
    got_diversity = diversity(samples, num_classes, weights=weights, unbiased=unbiased)
    for i in range(2):
        w = normalized(None if weights is None else weights[i], n)
        v = normalized(None if rater_weights is None else rater_weights[i], k)
        s = samples[i]
        assert got[i].item() == pytest.approx(slow_ged(s, raters[i], num_classes, w, v, unbiased), abs=1e-9)
        within = slow_within(s, num_classes, w) if unbiased else slow_distance(s, s, num_classes, w, w)
        assert got_diversity[i].item() == pytest.approx(within, abs=1e-9)


def test_ged_by_hand():
    """Two samples, one rater: d(s1, y) = 0, d(s2, y) = 1/2, d(s1, s2) = 1/2."""
    y = torch.tensor([[[[1, 1, 0, 0]]]])
    samples = torch.cat([y, torch.tensor([[[[1, 0, 0, 0]]]])], dim=1)
    assert ged(samples, y, 2).item() == pytest.approx(2 * 0.25 - 0 - 0.25)
    assert ged(samples, y, 2, unbiased=True).item() == pytest.approx(2 * 0.25 - 0 - 0.5)
    assert diversity(samples, 2).item() == pytest.approx(0.25)
    assert diversity(samples, 2, unbiased=True).item() == pytest.approx(0.5)


def test_all_empty_sets_agree():
    empty = torch.zeros(2, 4, 8, 8, dtype=torch.int64)
    zeros = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(ged(empty, empty[:, :1], 3), zeros)
    assert torch.equal(ged(empty, empty, 3, unbiased=True), zeros)
    assert torch.equal(diversity(empty, 3), zeros)
    assert torch.equal(hm_iou(empty, empty[:, :3], 3), zeros + 1)


def test_the_published_ged_of_a_set_with_itself_is_zero():
    a = maps(0, 3, 5, 4)
    torch.testing.assert_close(ged(a, a.flip(1), 4), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("weights", [None, (0.5, 0.3, 0.2)])
def test_expectation_over_all_draws(n: int, weights: tuple[float, ...] | None):
    """Over all draws of n samples from a known distribution: the published form is GED_∞ + D_∞ Σw² (1/n for
    equal weights), the unbiased form is GED_∞, whatever n and the weights."""
    modes, p = maps(4, 1, 3, 3), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    raters, q = maps(5, 1, 2, 3), torch.tensor([[0.7, 0.3]], dtype=torch.float64)
    exact = ged(modes, raters, 3, weights=p[None], rater_weights=q).item()
    spread = diversity(modes, 3, weights=p[None]).item()
    assert spread > 0.1

    draws = torch.tensor(list(itertools.product(range(3), repeat=n)))
    chance = p[draws].prod(1)
    samples, b = modes[0][draws], len(draws)
    w = torch.tensor(weights[:n] if weights else [1.0] * n, dtype=torch.float64)
    w = (w / w.sum()).expand(b, n)
    targets = raters.expand(b, -1, -1, -1), 3
    kwargs = {"weights": w if weights else None, "rater_weights": q.expand(b, -1)}
    published = (chance * ged(samples, *targets, **kwargs)).sum().item()
    unbiased = (chance * ged(samples, *targets, **kwargs, unbiased=True)).sum().item()
    assert published == pytest.approx(exact + spread * w[0].square().sum().item(), abs=1e-12)
    assert unbiased == pytest.approx(exact, abs=1e-12)
    mean_diversity = (chance * diversity(samples, 3, weights=kwargs["weights"], unbiased=True)).sum().item()
    assert mean_diversity == pytest.approx(spread, abs=1e-12)


def test_weights_are_multiplicities():
    generator = torch.Generator().manual_seed(0)
    samples, raters = (torch.randint(3, (1, n, 5, 4), generator=generator) for n in (3, 4))
    weights, rater_weights = torch.tensor([[3, 1, 2]]), torch.tensor([[1, 4, 1, 1]])
    repeated = samples.repeat_interleave(weights[0], dim=1)
    again = raters.repeat_interleave(rater_weights[0], dim=1)

    def close(got: Tensor, expected: Tensor, unweighted: Tensor):
        assert got.item() == pytest.approx(expected.item(), abs=1e-9)
        assert got.item() != pytest.approx(unweighted.item(), abs=1e-4)

    both = {"weights": weights, "rater_weights": rater_weights}
    close(ged(samples, raters, 3, **both), ged(repeated, again, 3), ged(samples, raters, 3))
    close(diversity(samples, 3, weights=weights), diversity(repeated, 3), diversity(samples, 3))
    matched = hm_iou(samples, raters, 3, weights=weights)
    close(matched, hm_iou(repeated, raters, 3), hm_iou(samples, raters, 3))


# --- HM-IoU ----------------------------------------------------------------------------------------------


@few_examples
@given(
    seeds, st.sampled_from([(1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (4, 2), (2, 4), (3, 3), (6, 3)]), classes, spaces
)
def test_hm_iou_is_the_best_permutation(seed, counts, num_classes, space):
    samples, raters = (maps(seed + i, 1, count, num_classes, space) for i, count in enumerate(counts))
    expected = slow_hm_iou(samples[0], raters[0], num_classes)
    assert hm_iou(samples, raters, num_classes).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(16, 4), (10, 4), (7, 3), (2, 5), (5, 1)])
def test_transport_with_equal_weights_is_the_match(n: int, k: int):
    samples, raters = maps(n, 3, n, 4, (8, 8)), maps(k, 3, k, 4, (8, 8))
    equal = torch.full((3, n), 0.37)
    torch.testing.assert_close(hm_iou(samples, raters, 4, weights=equal), hm_iou(samples, raters, 4), rtol=0, atol=1e-9)


def test_hm_iou_of_a_large_common_multiple():
    n, k = 23, 24
    assert math.lcm(n, k) > functional._LARGEST_MATCH
    iou = torch.rand(1, n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    repeated = np.tile(iou[0].numpy(), (k, n))
    rows, columns = linear_sum_assignment(repeated, maximize=True)
    assert hm_iou_from_iou(iou).item() == pytest.approx(repeated[rows, columns].mean(), abs=1e-9)


def test_hm_iou_matches_the_whole_distribution():
    """All samples equal one rater of four: the other three have no match, which leaves a quarter."""
    raters = torch.eye(4, dtype=torch.int64).view(1, 4, 2, 2)
    assert hm_iou(raters[:, :1].expand(1, 8, 2, 2), raters, 2).item() == pytest.approx(0.25)
    assert hm_iou(raters.repeat(1, 2, 1, 1), raters, 2).item() == pytest.approx(1)


# --- one matrix for many n -------------------------------------------------------------------------------


def test_blocks_serve_every_number_of_samples():
    samples, raters = maps(0, 2, 10, 3), maps(1, 2, 4, 3)
    weights = map_weights(2, 2, 10)
    blocks = iou_blocks(samples, raters, 3)
    for n in (2, 5, 10):
        part, sub, w = samples[:, :n], blocks.first(n), weights[:, :n]
        assert torch.equal(sub.samples_raters, pairwise_iou(part, raters, 3))
        assert torch.equal(sub.raters_raters, pairwise_iou(raters, raters, 3))
        for unbiased in (False, True):
            torch.testing.assert_close(
                ged_from_iou(*sub, weights=w, unbiased=unbiased),
                ged(part, raters, 3, weights=w, unbiased=unbiased),
            )
            torch.testing.assert_close(
                diversity_from_iou(sub.samples_samples, unbiased=unbiased),
                diversity(part, 3, unbiased=unbiased),
            )
        torch.testing.assert_close(hm_iou_from_iou(sub.samples_raters), hm_iou(part, raters, 3))
        torch.testing.assert_close(hm_iou_from_iou(sub.samples_raters, weights=w), hm_iou(part, raters, 3, weights=w))
