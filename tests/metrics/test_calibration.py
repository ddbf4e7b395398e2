"""Calibration bins and the Brier score against loops over pixels, and against torchmetrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stochseg import extras
from stochseg.metrics import CalibrationBins, brier, calibration_bins, ece, foreground_bins
from tests.support.label_maps import classes, few_examples, maps, probabilities, seeds, sizes, spaces

EVERY = slice(None)


def masked(raters: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The raters with 255 where they are void, and the mask; the first pixel of every image is not void."""
    mask = torch.rand(raters.shape, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[(EVERY, 0, *[0] * (raters.ndim - 2))] = True
    return raters.masked_fill(~mask, 255), mask


def slow_bins(mean, raters, mask, bins: int) -> list[list[float]]:
    """Count, sum of confidences and number of correct labels of each bin."""
    out = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for i, j, *pixel in np.ndindex(*raters.shape):
        if mask is not None and not mask[(i, j, *pixel)]:
            continue
        column = mean[(i, EVERY, *pixel)].double().tolist()
        confidence = max(column)
        which = min(int(confidence * bins), bins - 1)
        out[which][0] += 1
        out[which][1] += confidence
        out[which][2] += column.index(confidence) == raters[(i, j, *pixel)].item()
    return out


@few_examples
@given(seeds, sizes, classes, st.sampled_from([1, 7, 15]), st.booleans(), spaces)
def test_calibration_equals_loops(seed, k, num_classes, bins, with_mask, space):
    mean, raters = probabilities(seed, 2, num_classes, space), maps(seed, 2, k, num_classes, space)
    raters, mask = masked(raters, seed) if with_mask else (raters, None)
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
def test_ece_equals_torchmetrics(num_classes):
    extras.repair_torchvision()
    from torchmetrics.functional.classification import multiclass_calibration_error

    mean, raters = probabilities(0, 3, num_classes, (32, 32)), maps(1, 3, 4, num_classes, (32, 32))
    repeated = mean.double()[:, :, None].expand(-1, -1, 4, -1, -1)
    expected = multiclass_calibration_error(repeated, raters, num_classes, n_bins=15, norm="l1")
    assert ece(calibration_bins(mean, raters)).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("at_least", [0.0, 0.35])
@pytest.mark.parametrize("space", [(20,), (4, 5), (2, 2, 5)])
def test_foreground_bins_count_every_label_of_every_pixel(at_least, space):
    mean, (raters, mask) = probabilities(0, 2, 3, space), masked(maps(1, 2, 4, 3, space), 2)
    bins = foreground_bins(mean, raters, 5, mask, at_least)
    count, predicted, chosen = np.zeros(5), np.zeros(5), np.zeros(5)
    for b, k, *pixel in np.ndindex(*raters.shape):
        for label in (1, 2):
            p = mean[(b, label, *pixel)].item()
            if mask[(b, k, *pixel)] and p >= at_least:
                count[int(p * 5)] += 1
                predicted[int(p * 5)] += p
                chosen[int(p * 5)] += raters[(b, k, *pixel)] == label
    np.testing.assert_allclose(bins.count, count)
    np.testing.assert_allclose(bins.confidence_sum, predicted)
    np.testing.assert_allclose(bins.correct_sum, chosen)


def test_certain_pixels_belong_to_the_last_bin():
    mean = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 4)
    bins = calibration_bins(mean, torch.tensor([[[[0, 0, 0, 1]]]]), 10)
    assert bins.count.tolist() == [0] * 9 + [4]
    assert ece(bins).item() == pytest.approx(0.25)


def test_bins_of_images_add_up():
    mean, raters = probabilities(0, 4, 3), maps(0, 4, 2, 3)
    parts = [calibration_bins(mean[i : i + 1], raters[i : i + 1]) for i in range(4)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    torch.testing.assert_close(ece(total), ece(calibration_bins(mean, raters)))
    assert total.count.sum() == raters.numel()


def test_bins_can_be_built_from_sums():
    bins = CalibrationBins(torch.tensor([2, 2]), torch.tensor([0.8, 1.8]), torch.tensor([1, 1]))
    assert ece(bins).item() == pytest.approx((0.2 + 0.8) / 4)


@few_examples
@given(seeds, sizes, classes, st.booleans(), spaces)
def test_brier_equals_loops(seed, k, num_classes, with_mask, space):
    mean, raters = probabilities(seed, 2, num_classes, space), maps(seed, 2, k, num_classes, space)
    raters, mask = masked(raters, seed) if with_mask else (raters, None)
    got = brier(mean, raters, mask)
    for i in range(2):
        scores = [
            sum(
                (p - (label == raters[(i, j, *pixel)].item())) ** 2
                for label, p in enumerate(mean[(i, EVERY, *pixel)].tolist())
            )
            for j, *pixel in np.ndindex(*raters.shape[1:])
            if mask is None or mask[(i, j, *pixel)]
        ]
        assert got[i].item() == pytest.approx(float(sum(scores)) / len(scores), abs=1e-6)


def test_brier_of_an_image_that_is_void_everywhere_is_undefined():
    raters = maps(0, 2, 1, 3)
    mask = torch.ones_like(raters, dtype=torch.bool)
    mask[0] = False
    got = brier(probabilities(0, 2, 3), raters, mask)
    assert math.isnan(got[0].item())
    assert math.isfinite(got[1].item())


def test_brier_bounds():
    mean = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)
    assert brier(mean, torch.tensor([[[[0]]]])).item() == 0
    assert brier(mean, torch.tensor([[[[1]]]])).item() == 2
