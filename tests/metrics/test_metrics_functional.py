"""Every metric against a slow reference of its own, written with loops and sets of pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from stochseg.errors import UserError
from stochseg.metrics import (
    CalibrationBins,
    brier,
    calibration_bins,
    confusion_matrix,
    diversity,
    diversity_from_iou,
    ece,
    foreground_bins,
    functional,
    ged,
    ged_from_iou,
    hm_iou,
    hm_iou_from_iou,
    iou_blocks,
    iou_per_class,
    miou,
    pairwise_iou,
    without_void,
)

few_examples = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 5)
classes = st.sampled_from([2, 3, 19])
seeds = st.integers(0, 10_000)


def maps(seed: int, b: int, n: int, num_classes: int, h: int = 5, w: int = 4) -> Tensor:
    """Random label maps "b n h w": a third of them empty, the others with few or many labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (b, n, h, w), generator=generator)
    upper = torch.randint(1, num_classes + 1, (b, n, 1, 1), generator=generator)
    seen = torch.rand(b, n, 1, 1, generator=generator) > 1 / 3
    return torch.where(seen & (labels < upper), labels, 0)


def weights_of(seed: int, b: int, n: int) -> Tensor:
    """Random unnormalized weights "b n", some of them zero, never all."""
    weights = torch.rand(b, n, generator=torch.Generator().manual_seed(seed))
    weights[:, 1:][weights[:, 1:] < 0.2] = 0
    return weights + torch.eye(1, n) * 0.1


def probabilities(seed: int, b: int, num_classes: int, h: int = 5, w: int = 4) -> Tensor:
    logits = torch.randn(b, num_classes, h, w, generator=torch.Generator().manual_seed(seed))
    return (2 * logits).softmax(1)


# --- references ------------------------------------------------------------------------------------------


def slow_iou(a: Tensor, b: Tensor, num_classes: int) -> float:
    scores = []
    for label in range(1, num_classes):
        in_a = {i for i, value in enumerate(a.flatten().tolist()) if value == label}
        in_b = {i for i, value in enumerate(b.flatten().tolist()) if value == label}
        scores.append(len(in_a & in_b) / len(in_a | in_b) if in_a | in_b else 1.0)
    return sum(scores) / len(scores)


def slow_distance(first: Tensor, second: Tensor, num_classes: int, w: list[float], v: list[float]) -> float:
    """Weighted mean distance of all pairs of two sets "n h w", self pairs included."""
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


def shares(weights: Tensor | None, n: int) -> list[float]:
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


# --- IoU -------------------------------------------------------------------------------------------------


@few_examples
@given(seeds, sizes, sizes, classes)
def test_pairwise_iou_equals_sets_of_pixels(seed: int, n: int, m: int, num_classes: int) -> None:
    a, b = maps(seed, 2, n, num_classes), maps(seed + 1, 2, m, num_classes)
    expected = [[[slow_iou(s, y, num_classes) for y in b[i]] for s in a[i]] for i in range(2)]
    torch.testing.assert_close(
        pairwise_iou(a, b, num_classes), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_iou_of_empty_maps() -> None:
    empty = torch.zeros(1, 1, 4, 4, dtype=torch.int64)
    corner = empty.clone()
    corner[..., 0, 0] = 1
    assert pairwise_iou(empty, empty, 2).item() == 1
    assert pairwise_iou(empty, corner, 2).item() == 0
    assert pairwise_iou(empty, corner, 3).item() == 0.5  # class 2 is empty in both
    assert pairwise_iou(corner, corner, 3).item() == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32])
def test_any_integer_type_serves(dtype: torch.dtype) -> None:
    a, b = maps(0, 1, 3, 2), maps(1, 1, 2, 2)
    assert torch.equal(pairwise_iou(a.to(dtype), b.to(dtype), 2), pairwise_iou(a, b, 2))


def test_more_classes_than_a_byte_holds() -> None:
    a = torch.tensor([[[[0, 256, 299, 299]]]])
    b = torch.tensor([[[[0, 256, 299, 43]]]])  # 299 and 43 are equal modulo 256
    both_empty = 299 - 3  # of the foreground classes, all but 43, 256 and 299
    assert pairwise_iou(a, b, 300).item() == pytest.approx((both_empty + 0 + 1 + 0.5) / 299, abs=1e-12)


def test_maps_need_not_be_contiguous() -> None:
    a, b = maps(0, 2, 3, 3), maps(1, 2, 2, 3)
    turned = pairwise_iou(a.transpose(2, 3), b.transpose(2, 3), 3)
    assert torch.equal(turned, pairwise_iou(a, b, 3))


def test_autocast_does_not_touch_the_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(2, (1, 1, 64, 64), generator=generator) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = pairwise_iou(a, b, 2).item()
    assert got == pytest.approx((a & b).sum().item() / (a | b).sum().item(), abs=1e-12)


def test_counts_stay_exact_beyond_float32() -> None:
    full = torch.ones(1, 1, 4096, 4097, dtype=torch.uint8)
    holes = full.clone()
    holes[..., 0, :3] = 0
    pixels = full.numel()
    assert pixels > 2**24
    assert pairwise_iou(full, holes, 2).item() == pytest.approx((pixels - 3) / pixels, rel=0, abs=1e-13)


# --- GED and diversity -----------------------------------------------------------------------------------


@few_examples
@given(
    seeds,
    st.integers(2, 5),
    sizes,
    classes,
    st.booleans(),
    st.sampled_from([(False, False), (True, False), (False, True), (True, True)]),
)
def test_ged_and_diversity_equal_loops_over_pairs(
    seed: int, n: int, k: int, num_classes: int, unbiased: bool, weighted: tuple[bool, bool]
) -> None:
    samples, raters = maps(seed, 2, n, num_classes), maps(seed + 1, 2, k, num_classes)
    weights = weights_of(seed, 2, n) if weighted[0] else None
    if weights is not None:
        weights[:, 1] += 0.1  # two samples with weight, for the unbiased form
    rater_weights = weights_of(seed + 1, 2, k) if weighted[1] else None
    got = ged(samples, raters, num_classes, weights=weights, rater_weights=rater_weights, unbiased=unbiased)
    got_diversity = diversity(samples, num_classes, weights=weights, unbiased=unbiased)
    for i in range(2):
        w = shares(None if weights is None else weights[i], n)
        v = shares(None if rater_weights is None else rater_weights[i], k)
        s = samples[i]
        assert got[i].item() == pytest.approx(slow_ged(s, raters[i], num_classes, w, v, unbiased), abs=1e-9)
        within = slow_within(s, num_classes, w) if unbiased else slow_distance(s, s, num_classes, w, w)
        assert got_diversity[i].item() == pytest.approx(within, abs=1e-9)


def test_ged_by_hand() -> None:
    """Two samples, one rater: d(s1, y) = 0, d(s2, y) = 1/2, d(s1, s2) = 1/2."""
    y = torch.tensor([[[[1, 1, 0, 0]]]])
    samples = torch.cat([y, torch.tensor([[[[1, 0, 0, 0]]]])], dim=1)
    assert ged(samples, y, 2).item() == pytest.approx(2 * 0.25 - 0 - 0.25)
    assert ged(samples, y, 2, unbiased=True).item() == pytest.approx(2 * 0.25 - 0 - 0.5)
    assert diversity(samples, 2).item() == pytest.approx(0.25)
    assert diversity(samples, 2, unbiased=True).item() == pytest.approx(0.5)


def test_all_empty_sets_agree() -> None:
    empty = torch.zeros(2, 4, 8, 8, dtype=torch.int64)
    zeros = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(ged(empty, empty[:, :1], 3), zeros)
    assert torch.equal(ged(empty, empty, 3, unbiased=True), zeros)
    assert torch.equal(diversity(empty, 3), zeros)
    assert torch.equal(hm_iou(empty, empty[:, :3], 3), zeros + 1)


def test_the_published_ged_of_a_set_with_itself_is_zero() -> None:
    a = maps(0, 3, 5, 4)
    torch.testing.assert_close(ged(a, a.flip(1), 4), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("weights", [None, (0.5, 0.3, 0.2)])
def test_expectation_over_all_draws(n: int, weights: tuple[float, ...] | None) -> None:
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


def test_weights_are_multiplicities() -> None:
    generator = torch.Generator().manual_seed(0)
    samples, raters = (torch.randint(3, (1, n, 5, 4), generator=generator) for n in (3, 4))
    weights, rater_weights = torch.tensor([[3, 1, 2]]), torch.tensor([[1, 4, 1, 1]])
    repeated = samples.repeat_interleave(weights[0], dim=1)
    again = raters.repeat_interleave(rater_weights[0], dim=1)

    def close(got: Tensor, expected: Tensor, unweighted: Tensor) -> None:
        assert got.item() == pytest.approx(expected.item(), abs=1e-9)
        assert got.item() != pytest.approx(unweighted.item(), abs=1e-4)

    both = {"weights": weights, "rater_weights": rater_weights}
    close(ged(samples, raters, 3, **both), ged(repeated, again, 3), ged(samples, raters, 3))
    close(diversity(samples, 3, weights=weights), diversity(repeated, 3), diversity(samples, 3))
    matched = hm_iou(samples, raters, 3, weights=weights)
    close(matched, hm_iou(repeated, raters, 3), hm_iou(samples, raters, 3))


# --- HM-IoU ----------------------------------------------------------------------------------------------


@few_examples
@given(seeds, st.sampled_from([(1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (4, 2), (2, 4), (3, 3), (6, 3)]), classes)
def test_hm_iou_is_the_best_permutation(seed: int, counts: tuple[int, int], num_classes: int) -> None:
    samples, raters = maps(seed, 1, counts[0], num_classes), maps(seed + 1, 1, counts[1], num_classes)
    expected = slow_hm_iou(samples[0], raters[0], num_classes)
    assert hm_iou(samples, raters, num_classes).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(16, 4), (10, 4), (7, 3), (2, 5), (5, 1)])
def test_transport_with_equal_weights_is_the_match(n: int, k: int) -> None:
    samples, raters = maps(n, 3, n, 4, 8, 8), maps(k, 3, k, 4, 8, 8)
    equal = torch.full((3, n), 0.37)
    torch.testing.assert_close(hm_iou(samples, raters, 4, weights=equal), hm_iou(samples, raters, 4), rtol=0, atol=1e-9)


def test_hm_iou_of_a_large_common_multiple() -> None:
    n, k = 23, 24
    assert math.lcm(n, k) > functional._LARGEST_MATCH
    iou = torch.rand(1, n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    repeated = np.tile(iou[0].numpy(), (k, n))
    rows, columns = linear_sum_assignment(repeated, maximize=True)
    assert hm_iou_from_iou(iou).item() == pytest.approx(repeated[rows, columns].mean(), abs=1e-9)


def test_hm_iou_matches_the_whole_distribution() -> None:
    """One rater of four is met by all samples: the others go without, so a quarter is matched and no more."""
    raters = torch.eye(4, dtype=torch.int64).view(1, 4, 2, 2)
    assert hm_iou(raters[:, :1].expand(1, 8, 2, 2), raters, 2).item() == pytest.approx(0.25)
    assert hm_iou(raters.repeat(1, 2, 1, 1), raters, 2).item() == pytest.approx(1)


# --- one matrix for many n -------------------------------------------------------------------------------


def test_blocks_serve_every_number_of_samples() -> None:
    samples, raters = maps(0, 2, 10, 3), maps(1, 2, 4, 3)
    weights = weights_of(2, 2, 10)
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


@pytest.mark.parametrize("n", [0, 11])
def test_blocks_know_how_many_samples_they_have(n: int) -> None:
    blocks = iou_blocks(maps(0, 1, 10, 2), maps(1, 1, 4, 2), 2)
    with pytest.raises(UserError, match=rf"first\({n}\): expected 1 to 10.*draw more"):
        blocks.first(n)


# --- confusion matrix ------------------------------------------------------------------------------------


@few_examples
@given(seeds, classes, st.sampled_from([None, 255, 0]))
def test_confusion_and_miou_equal_loops(seed: int, num_classes: int, ignore: int | None) -> None:
    prediction, target = maps(seed, 3, 1, num_classes)[:, 0], maps(seed + 1, 3, 1, num_classes)[:, 0]
    if ignore == 255:
        target[:, 0] = 255
    if ignore == 0:
        target[0, 0, 0] = 1  # or nothing might be left
    expected = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for p, y in zip(prediction.flatten().tolist(), target.flatten().tolist(), strict=True):
        if y != ignore:
            expected[y, p] += 1
    confusion = confusion_matrix(prediction, target, num_classes, ignore)
    assert confusion.dtype == torch.int64
    assert torch.equal(confusion, expected)

    scores = []
    for label in range(num_classes):
        both = int(expected[label, label])
        either = int(expected[label].sum() + expected[:, label].sum()) - both
        value = iou_per_class(confusion)[label].item()
        if either == 0:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(both / either)
            scores.append(both / either)
    assert miou(confusion).item() == pytest.approx(sum(scores) / len(scores))


def test_miou_is_of_the_data_set_not_of_the_images() -> None:
    prediction = torch.tensor([[[1, 1, 1, 1]], [[0, 0, 0, 1]]])
    target = torch.tensor([[[1, 1, 1, 1]], [[0, 0, 1, 0]]])
    summed = sum(confusion_matrix(p, y, 2) for p, y in zip(prediction, target, strict=True))
    assert torch.equal(summed, confusion_matrix(prediction, target, 2))
    assert miou(summed).item() == pytest.approx((2 / 4 + 4 / 6) / 2)


# --- calibration -----------------------------------------------------------------------------------------


def slow_bins(mean: Tensor, raters: Tensor, mask: Tensor | None, bins: int) -> list[list[float]]:
    """Count, sum of confidences and number of correct labels of each bin."""
    out = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for i, j, y, x in np.ndindex(*raters.shape):
        if mask is not None and not mask[i, j, y, x]:
            continue
        column = mean[i, :, y, x].double().tolist()
        confidence = max(column)
        which = min(int(confidence * bins), bins - 1)
        out[which][0] += 1
        out[which][1] += confidence
        out[which][2] += column.index(confidence) == raters[i, j, y, x].item()
    return out


@few_examples
@given(seeds, sizes, classes, st.sampled_from([1, 7, 15]), st.booleans())
def test_calibration_equals_loops(seed: int, k: int, num_classes: int, bins: int, masked: bool) -> None:
    mean, raters = probabilities(seed, 2, num_classes), maps(seed, 2, k, num_classes)
    mask = None
    if masked:
        mask = torch.rand(raters.shape, generator=torch.Generator().manual_seed(seed)) > 0.3
        mask[0] = mask[0, :, :1, :1] = True
        raters = raters.masked_fill(~mask, 255)
    got = calibration_bins(mean, raters, bins, mask)
    count, confidence, correct = zip(*slow_bins(mean, raters, mask, bins), strict=True)
    assert got.count.tolist() == list(count)
    assert got.confidence_sum.tolist() == pytest.approx(list(confidence))
    assert got.correct_sum.tolist() == list(correct)
    total = sum(count)
    filled = [row for row in zip(count, confidence, correct, strict=True) if row[0]]
    error = sum(n / total * abs(right / n - sure / n) for n, sure, right in filled)
    assert ece(got).item() == pytest.approx(error)


@pytest.mark.parametrize("num_classes", [2, 5, 19])
def test_ece_equals_torchmetrics(num_classes: int) -> None:
    mean, raters = probabilities(0, 3, num_classes, 32, 32), maps(1, 3, 4, num_classes, 32, 32)
    repeated = mean.double()[:, :, None].expand(-1, -1, 4, -1, -1)
    expected = multiclass_calibration_error(repeated, raters, num_classes, n_bins=15, norm="l1")
    assert ece(calibration_bins(mean, raters)).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("at_least", [0.0, 0.35])
def test_foreground_bins_count_every_label_of_every_pixel(at_least):
    mean = torch.rand(2, 3, 4, 5).softmax(1)
    raters = torch.randint(3, (2, 4, 4, 5))
    mask = torch.rand(2, 4, 4, 5) > 0.3
    bins = foreground_bins(mean, raters, 5, mask, at_least)
    count, said, chosen = np.zeros(5), np.zeros(5), np.zeros(5)
    for b, k, y, x in np.ndindex(2, 4, 4, 5):
        for label in (1, 2):
            p = mean[b, label, y, x].item()
            if mask[b, k, y, x] and p >= at_least:
                count[int(p * 5)] += 1
                said[int(p * 5)] += p
                chosen[int(p * 5)] += raters[b, k, y, x] == label
    np.testing.assert_allclose(bins.count, count)
    np.testing.assert_allclose(bins.confidence_sum, said)
    np.testing.assert_allclose(bins.correct_sum, chosen)


def test_certain_pixels_belong_to_the_last_bin() -> None:
    mean = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 4)
    bins = calibration_bins(mean, torch.tensor([[[[0, 0, 0, 1]]]]), 10)
    assert bins.count.tolist() == [0] * 9 + [4]
    assert ece(bins).item() == pytest.approx(0.25)


def test_bins_of_images_add_up() -> None:
    mean, raters = probabilities(0, 4, 3), maps(0, 4, 2, 3)
    parts = [calibration_bins(mean[i : i + 1], raters[i : i + 1]) for i in range(4)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    torch.testing.assert_close(ece(total), ece(calibration_bins(mean, raters)))
    assert total.count.sum() == raters.numel()


@few_examples
@given(seeds, sizes, classes, st.booleans())
def test_brier_equals_loops(seed: int, k: int, num_classes: int, masked: bool) -> None:
    mean, raters = probabilities(seed, 2, num_classes), maps(seed, 2, k, num_classes)
    mask = torch.ones_like(raters, dtype=torch.bool)
    if masked:
        mask = torch.rand(raters.shape, generator=torch.Generator().manual_seed(seed)) > 0.3
        mask[:, 0, 0, 0] = True
        raters = raters.masked_fill(~mask, 255)
    got = brier(mean, raters, mask if masked else None)
    for i in range(2):
        scores = [
            sum((p - (label == raters[i, j, y, x].item())) ** 2 for label, p in enumerate(mean[i, :, y, x].tolist()))
            for j, y, x in np.ndindex(*raters.shape[1:])
            if mask[i, j, y, x]
        ]
        assert got[i].item() == pytest.approx(float(sum(scores)) / len(scores), abs=1e-6)


def test_brier_of_an_image_without_counted_pixels_is_undefined() -> None:
    raters = maps(0, 2, 1, 3)
    mask = torch.ones_like(raters, dtype=torch.bool)
    mask[0] = False
    got = brier(probabilities(0, 2, 3), raters, mask)
    assert math.isnan(got[0].item())
    assert math.isfinite(got[1].item())


def test_brier_bounds() -> None:
    mean = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)
    assert brier(mean, torch.tensor([[[[0]]]])).item() == 0
    assert brier(mean, torch.tensor([[[[1]]]])).item() == 2


# --- what the user is told -------------------------------------------------------------------------------

S, Y, P = maps(0, 2, 3, 3), maps(1, 2, 4, 3), probabilities(0, 2, 3)
MISTAKES = {
    "no batch": (
        lambda: ged(torch.zeros(16, 128, 128, dtype=torch.int64), Y, 3),
        'samples "b n h w": expected 4 dimensions, got shape (16, 128, 128); add a batch dimension with samples[None]',
    ),
    "two dimensions": (
        lambda: hm_iou(S, Y[0, 0], 3),
        'raters "b k h w": expected 4 dimensions, got shape (5, 4); pass a tensor "b k h w"',
    ),
    "no samples": (lambda: ged(S[:, :0], Y, 3), 'samples "b n h w": expected at least one of each'),
    "other size": (
        lambda: ged(S, Y[..., :2], 3),
        "samples and raters: expected equal b, h and w, got shapes (2, 3, 5, 4) and (2, 4, 5, 2)",
    ),
    "other batch": (lambda: pairwise_iou(S, Y[:1], 3), "a and b: expected equal b, h and w"),
    "high label": (lambda: ged(S, Y + 1, 3), "raters: expected labels 0 to 2, got 1 to 3; raise num_classes"),
    "void label": (lambda: ged(S, Y, 2), "samples: expected labels 0 to 1, got 0 to 2"),
    "negative label": (lambda: diversity(S - 1, 3), "samples: expected labels 0 to 2, got -1 to 1"),
    "wraps in a byte": (lambda: diversity(S + 256, 3), "samples: expected labels 0 to 2, got 256 to 258"),
    "logits": (
        lambda: diversity(S.float(), 3),
        "samples: expected integer labels, got torch.float32; take argmax",
    ),
    "one class": (lambda: diversity(S * 0, 1), "num_classes: expected at least 2"),
    "one sample": (
        lambda: ged(S[:, :1], Y, 3, unbiased=True),
        "unbiased=True: expected at least 2 samples with weight an image, got one that carries it all",
    ),
    "one weight": (
        lambda: diversity(S, 3, weights=torch.tensor([[1.0, 1, 0], [0, 5, 0]]), unbiased=True),
        "unbiased=True: expected at least 2 samples",
    ),
    "weights shape": (
        lambda: ged(S, Y, 3, weights=torch.ones(3)),
        'weights "b n": expected shape (2, 3), got (3,); give one weight a map',
    ),
    "rater weights shape": (
        lambda: ged(S, Y, 3, rater_weights=torch.ones(2, 3)),
        'rater_weights "b k": expected shape (2, 4), got (2, 3)',
    ),
    "negative weight": (
        lambda: hm_iou(S, Y, 3, weights=torch.tensor([[1.0, 1, -1], [1, 1, 1]])),
        'weights "b n": expected finite weights, none negative and not all zero in an image, got -1 to 1',
    ),
    "zero weights": (lambda: diversity(S, 3, weights=torch.zeros(2, 3)), "not all zero"),
    "nan weight": (lambda: diversity(S, 3, weights=torch.full((2, 3), math.nan)), "expected finite weights"),
    "infinite weight": (
        lambda: diversity(S, 3, weights=torch.full((2, 3), math.inf)),
        "expected finite weights",
    ),
    "confusion shape": (
        lambda: confusion_matrix(S[:, 0], Y[:, 0, :2], 3),
        "prediction and target: expected one shape, got (2, 5, 4) and (2, 2, 4); resize",
    ),
    "confusion label": (
        lambda: confusion_matrix(S, S + 253, 3),
        "target: expected labels 0 to 2, got 253 to 255",
    ),
    "not a confusion": (
        lambda: miou(torch.ones(2, 3)),
        'confusion "l l": expected a square matrix, got shape (2, 3)',
    ),
    "empty confusion": (lambda: miou(torch.zeros(3, 3)), "miou: the confusion matrix counts no pixel"),
    "mean of logits": (
        lambda: calibration_bins(P.log(), Y),
        'mean "b l h w": expected probabilities, got values from -',
    ),
    "mean of sigmoids": (lambda: brier(P * 0.5, Y), "got sums over l from 0.5 to 0.5; turn logits into"),
    "mean with nan": (lambda: brier(P * math.nan, Y), "expected probabilities, got values from nan to nan"),
    "mean of labels": (lambda: brier(S, Y), 'mean "b l h w": expected float probabilities, got torch.int64'),
    "mean size": (lambda: brier(P[..., :2], Y), "mean and raters: expected equal b, h and w"),
    "mean without batch": (
        lambda: brier(P[0], Y),
        'mean "b l h w": expected 4 dimensions, got shape (3, 5, 4)',
    ),
    "raters of mean": (lambda: brier(P, Y + 1), "raters: expected labels 0 to 2, got 1 to 3"),
    "mask type": (
        lambda: brier(P, Y, torch.ones(Y.shape)),
        'mask "b k h w": expected torch.bool of shape (2, 4, 5, 4), as the raters, got torch.float32',
    ),
    "mask shape": (
        lambda: calibration_bins(P, Y, 15, Y[:, :1] > 0),
        'mask "b k h w": expected torch.bool of shape',
    ),
    "no bins": (lambda: calibration_bins(P, Y, 0), "bins: expected at least 1, got 0"),
    "nothing binned": (
        lambda: ece(calibration_bins(P, Y, 15, Y < 0)),
        "ece: the bins count no pixel; check the mask",
    ),
    "bins of two kinds": (
        lambda: calibration_bins(P, Y, 10) + calibration_bins(P, Y, 15),
        "calibration bins: 10 bins cannot be added to 15",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_answered(mistake: str) -> None:
    act, message = MISTAKES[mistake]
    with pytest.raises(UserError) as caught:
        act()
    assert message in str(caught.value)


def test_bins_can_be_built_from_sums() -> None:
    bins = CalibrationBins(torch.tensor([2, 2]), torch.tensor([0.8, 1.8]), torch.tensor([1, 1]))
    assert ece(bins).item() == pytest.approx((0.2 + 0.8) / 4)


def test_void_adds_nothing_to_the_scores() -> None:
    """A map that is perfect wherever the raters are not void scores as perfect."""
    generator = torch.Generator().manual_seed(0)
    raters = torch.randint(3, (2, 2, 6, 6), generator=generator)
    mask = torch.rand(raters.shape, generator=generator) < 0.8
    known = mask.all(1, keepdim=True)
    samples = torch.where(known, raters, torch.randint(3, raters.shape, generator=generator))
    assert ged(*without_void(samples, raters, mask), 3).abs().max() < 1e-12
    assert (ged(samples, raters, 3) > 0.01).all()
    assert all(a is b for a, b in zip(without_void(samples, raters, None), (samples, raters), strict=True))
