"""Risk-coverage curves against all orders of ties, and Dice of fused maps against the confusion matrix."""

import itertools

import numpy as np
import pytest
import torch

from stochseg.errors import UserError
from stochseg.metrics import confusion_matrix, dice_per_class, fused_dice, risk_coverage


def brute_force(risk, confidence):
    """Mean over all orders that sort by confidence."""
    curves = [
        np.cumsum([risk[i] for i in order]) / np.arange(1, len(risk) + 1)
        for order in itertools.permutations(range(len(risk)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean(curves, 0)


@pytest.mark.parametrize("seed", range(5))
def test_curve_is_the_mean_over_all_orders_of_ties(seed):
    random = np.random.default_rng(seed)
    risk, confidence = random.random(6), random.integers(0, 3, 6)
    curve = risk_coverage(risk, confidence)
    np.testing.assert_allclose(curve.risk, brute_force(risk, confidence), atol=1e-12)
    np.testing.assert_allclose(curve.best, brute_force(risk, -risk), atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 7) / 6)
    assert curve.area == pytest.approx(curve.risk.mean())
    assert curve.best_area <= curve.area + 1e-12
    assert curve.random_area == pytest.approx(risk.mean())


def test_equal_confidences_keep_the_mean_risk():
    assert risk_coverage([0.0, 1.0, 0.5], [0.3] * 3).risk.tolist() == pytest.approx([0.5] * 3)


@pytest.mark.parametrize(("risk", "confidence"), [([], []), ([0.1], [0.1, 0.2]), ([float("nan")], [0.5])])
def test_impossible_arguments_are_refused(risk, confidence):
    with pytest.raises(UserError, match="at least one case"):
        risk_coverage(risk, confidence)


def test_fused_dice_equals_that_of_the_confusion_matrix():
    random = torch.Generator().manual_seed(0)
    fused, maps = (torch.randint(0, 3, shape, generator=random) for shape in ((2, 5, 5), (2, 4, 5, 5)))
    mask = torch.rand(maps.shape, generator=random) < 0.8
    found = fused_dice(fused, maps, 3, mask)
    for b, n in itertools.product(range(2), range(4)):
        known = mask[b, n]
        expected = dice_per_class(confusion_matrix(fused[b][known], maps[b, n][known], 3))[1:]
        torch.testing.assert_close(found[b, n], expected)
    assert (fused_dice(torch.zeros(1, 2, 2).long(), torch.zeros(1, 3, 2, 2).long(), 2) == 1).all()
