"""The confusion matrix and mean IoU of a data set against loops over pixels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stochseg.metrics import confusion_matrix, dice_per_class, iou_per_class, miou
from tests.support.label_maps import classes, few_examples, maps, seeds, spaces


@few_examples
@given(seeds, classes, st.sampled_from([None, 255, 0]), spaces)
def test_confusion_and_miou_equal_loops(seed, num_classes, ignore, space):
    prediction, target = (maps(seed + i, 3, 1, num_classes, space)[:, 0] for i in range(2))
    if ignore == 255:
        target[:, 0] = 255
    if ignore == 0:
        target[0].view(-1)[0] = 1  # or nothing might be left
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
        value, dice = iou_per_class(confusion)[label].item(), dice_per_class(confusion)[label].item()
        if either == 0:
            assert math.isnan(value)
            assert math.isnan(dice)
        else:
            assert value == pytest.approx(both / either)
            assert dice == pytest.approx(2 * both / (both + either))
            scores.append(both / either)
    assert miou(confusion).item() == pytest.approx(sum(scores) / len(scores))


def test_miou_is_that_of_the_data_set_not_of_the_images():
    prediction = torch.tensor([[[1, 1, 1, 1]], [[0, 0, 0, 1]]])
    target = torch.tensor([[[1, 1, 1, 1]], [[0, 0, 1, 0]]])
    summed = sum(confusion_matrix(p, y, 2) for p, y in zip(prediction, target, strict=True))
    assert torch.equal(summed, confusion_matrix(prediction, target, 2))
    assert miou(summed).item() == pytest.approx((2 / 4 + 4 / 6) / 2)
