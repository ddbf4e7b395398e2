"""Arguments of metrics: tensors, arrays and lists of any number of dimensions; mistakes raise a UserError."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stochseg.errors import UserError
from stochseg.metrics import (
    METRICS,
    CalibrationBins,
    brier,
    brier_sums,
    calibration_bins,
    confusion_matrix,
    diversity,
    diversity_from_iou,
    ece,
    foreground_bins,
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
from tests.support.label_maps import maps, probabilities

S, Y, P = maps(0, 2, 3, 3), maps(1, 2, 4, 3), probabilities(0, 2, 3)
MASK, WEIGHTS = maps(2, 2, 4, 3) < 2, torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 1.0]])
IOU = torch.tensor([[[1.0, 0.5], [0.5, 1.0]]])

# Every public function, and tensors to call it with.
CALLS = {
    "pairwise_iou": (lambda a, b: pairwise_iou(a, b, 3), (S, Y)),
    "iou_blocks": (lambda a, b: iou_blocks(a, b, 3), (S, Y)),
    "without_void": (without_void, (S, Y, MASK)),
    "ged": (lambda a, b, w: ged(a, b, 3, weights=w), (S, Y, WEIGHTS)),
    "ged_from_iou": (ged_from_iou, (IOU, IOU, IOU)),
    "diversity": (lambda a, w: diversity(a, 3, weights=w), (S, WEIGHTS)),
    "diversity_from_iou": (diversity_from_iou, (IOU,)),
    "hm_iou": (lambda a, b, w: hm_iou(a, b, 3, weights=w), (S, Y, WEIGHTS)),
    "hm_iou_from_iou": (hm_iou_from_iou, (IOU,)),
    "confusion_matrix": (lambda a, b: confusion_matrix(a, b, 3), (S, S.flip(1))),
    "iou_per_class": (iou_per_class, (torch.tensor([[2, 1], [0, 3]]),)),
    "miou": (miou, (torch.tensor([[2, 1], [0, 3]]),)),
    "brier": (brier, (P, Y, MASK)),
    "brier_sums": (brier_sums, (P, Y, MASK)),
    "calibration_bins": (lambda p, y, m: calibration_bins(p, y, mask=m), (P, Y, MASK)),
    "foreground_bins": (lambda p, y, m: foreground_bins(p, y, mask=m), (P, Y, MASK)),
}


def tensors(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return list(vars(result).values()) if isinstance(result, CalibrationBins) else list(result)


def assert_same(got, expected) -> None:
    for a, b in zip(tensors(got), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, equal_nan=True)


# --- arrays and lists ------------------------------------------------------------------------------------

KINDS = {
    "arrays": lambda x: x.numpy(),
    "lists": lambda x: x.double().tolist() if x.is_floating_point() else x.tolist(),
    "read-only arrays": lambda x: np.frombuffer(x.numpy().tobytes(), x.numpy().dtype).reshape(x.shape),
    "arrays with negative strides": lambda x: np.ascontiguousarray(x.numpy()[..., ::-1])[..., ::-1],
    "big-endian arrays": lambda x: x.numpy().astype(x.numpy().dtype.newbyteorder(">")),
    "arrays of 16 bits": lambda x: x.numpy().astype(np.uint16) if x.dtype == torch.int64 else x.numpy(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("error")
def test_every_function_takes_arrays_and_lists(name, kind):
    function, arguments = CALLS[name]
    assert_same(function(*map(KINDS[kind], arguments)), function(*arguments))


@pytest.mark.parametrize("wrong", [None, "maps", object(), [torch.zeros(2), torch.zeros(3)], [[1, 2], [3]], {"a": 1}])
@pytest.mark.parametrize("name", CALLS)
def test_every_function_rejects_other_objects(name, wrong):
    function, arguments = CALLS[name]
    with pytest.raises(UserError, match="expected a tensor or an array"):
        function(wrong, *arguments[1:])


@pytest.mark.parametrize("name", METRICS)
def test_every_class_takes_arrays_and_rejects_other_objects(name):
    arguments = {"diversity": (S,), "miou": (S, S), "ece": (P, Y), "brier": (P, Y)}.get(name, (S, Y))
    tensor, array = METRICS[name](num_classes=3), METRICS[name](num_classes=3)
    tensor.update(*arguments)
    array.update(*(x.numpy() for x in arguments))
    assert_same(array.compute(), tensor.compute())
    with pytest.raises(UserError, match="expected a tensor or an array"):
        array.update("maps", *arguments[1:])


# --- any number of dimensions ----------------------------------------------------------------------------


@pytest.mark.parametrize("space", [(20,), (5, 2, 2), (1, 5, 4, 1)])
@pytest.mark.parametrize("name", [name for name, (_, arguments) in CALLS.items() if arguments[0].ndim == 4])
def test_the_same_pixels_in_another_shape_give_the_same(name, space):
    function, arguments = CALLS[name]
    reshaped = (x.reshape(*x.shape[:2], *space) if x.ndim == 4 else x for x in arguments)
    expected = function(*arguments)
    if name == "without_void":
        expected = [x.reshape(*x.shape[:2], *space) for x in expected]
    assert_same(function(*reshaped), expected)


# --- mistakes --------------------------------------------------------------------------------------------

# A mistake, and what its message must name.
MISTAKES = {
    "no batch": (lambda: ged(S[0], Y, 3), ("samples", "(3, 5, 4)", "raters", "(2, 4, 5, 4)", "samples[None]")),
    "two dimensions": (lambda: hm_iou(S, Y[0, 0], 3), ('raters "b k *space"', "at least 3", "(5, 4)", "raters[None]")),
    "no samples": (lambda: ged(S[:, :0], Y, 3), ('samples "b n *space"', "at least one", "(2, 0, 5, 4)")),
    "other size": (lambda: ged(S, Y[..., :2], 3), ("samples and raters", "(2, 3, 5, 4)", "(2, 4, 5, 2)")),
    "other batch": (lambda: pairwise_iou(S, Y[:1], 3), ("a and b", "(2, 3, 5, 4)", "(1, 4, 5, 4)")),
    "other dimensions": (lambda: ged(S, Y.flatten(2), 3), ("samples and raters", "(2, 3, 5, 4)", "(2, 4, 20)")),
    "high label": (lambda: ged(S, Y + 1, 3), ("raters", "0 to 2", "got 1 to 3", "num_classes")),
    "void label": (lambda: ged(S, Y, 2), ("samples", "0 to 1", "got 0 to 2")),
    "negative label": (lambda: diversity(S - 1, 3), ("samples", "0 to 2", "got -1 to 1")),
    "wraps in a byte": (lambda: diversity(S + 256, 3), ("samples", "0 to 2", "got 256 to 258")),
    "logits": (lambda: diversity(S.float(), 3), ("samples", "integer labels", "torch.float32", "argmax")),
    "one class": (lambda: diversity(S * 0, 1), ("num_classes", "at least 2", "got 1")),
    "half a class": (lambda: diversity(S, 2.5), ("num_classes", "integer", "got 2.5")),
    "classes as text": (lambda: ged(S, Y, "3"), ("num_classes", "integer", "got '3'")),
    "one sample": (lambda: ged(S[:, :1], Y, 3, unbiased=True), ("unbiased=True", "at least 2", "n = 1")),
    "one weight": (
        lambda: diversity(S, 3, weights=torch.tensor([[1.0, 1, 0], [0, 5, 0]]), unbiased=True),
        ("unbiased=True", "at least 2", "n = 3"),
    ),
    "weights shape": (lambda: ged(S, Y, 3, weights=torch.ones(3)), ('weights "b n"', "(2, 3)", "got (3,)")),
    "rater weights shape": (
        lambda: ged(S, Y, 3, rater_weights=torch.ones(2, 3)),
        ('rater_weights "b k"', "(2, 4)", "got (2, 3)"),
    ),
    "negative weight": (
        lambda: hm_iou(S, Y, 3, weights=torch.tensor([[1.0, 1, -1], [1, 1, 1]])),
        ('weights "b n"', "negative", "got -1 to 1"),
    ),
    "zero weights": (lambda: diversity(S, 3, weights=torch.zeros(2, 3)), ("weights", "zero")),
    "nan weight": (lambda: diversity(S, 3, weights=torch.full((2, 3), math.nan)), ("weights", "finite", "nan")),
    "infinite weight": (lambda: diversity(S, 3, weights=torch.full((2, 3), math.inf)), ("weights", "finite", "inf")),
    "confusion shape": (
        lambda: confusion_matrix(S[:, 0], Y[:, 0, :2], 3),
        ("prediction and target", "(2, 5, 4)", "(2, 2, 4)"),
    ),
    "confusion label": (lambda: confusion_matrix(S, S + 253, 3), ("target", "0 to 2", "got 253 to 255")),
    "not a confusion": (lambda: miou(torch.ones(2, 3)), ('confusion "l l"', "square", "(2, 3)")),
    "empty confusion": (lambda: miou(torch.zeros(3, 3)), ("miou", "no pixel")),
    "mean of logits": (lambda: calibration_bins(P.log(), Y), ('mean "b l *space"', "values from -", "softmax")),
    "mean of sigmoids": (lambda: brier(P * 0.5, Y), ("mean", "sums over l from 0.5 to 0.5", "softmax")),
    "mean with nan": (lambda: brier(P * math.nan, Y), ("mean", "values from nan to nan")),
    "mean of labels": (lambda: brier(S, Y), ('mean "b l *space"', "float", "torch.int64")),
    "mean size": (lambda: brier(P[..., :2], Y), ("mean and raters", "(2, 3, 5, 2)", "(2, 4, 5, 4)")),
    "mean without batch": (lambda: brier(P[0], Y), ("mean and raters", "(3, 5, 4)", "mean[None]")),
    "raters of mean": (lambda: brier(P, Y + 1), ("raters", "0 to 2", "got 1 to 3")),
    "mask type": (
        lambda: brier(P, Y, torch.ones(Y.shape)),
        ('mask "b k *space"', "torch.bool", "(2, 4, 5, 4)", "got torch.float32"),
    ),
    "mask shape": (lambda: calibration_bins(P, Y, 15, MASK[:, :1]), ("mask", "(2, 4, 5, 4)", "(2, 1, 5, 4)")),
    "void mask shape": (lambda: without_void(S, Y, MASK[:, :1]), ("mask", "(2, 4, 5, 4)", "(2, 1, 5, 4)")),
    "no bins": (lambda: calibration_bins(P, Y, 0), ("bins", "at least 1", "got 0")),
    "bins as text": (lambda: calibration_bins(P, Y, "x"), ("bins", "integer", "got 'x'")),
    "nothing binned": (lambda: ece(calibration_bins(P, Y, 15, Y < 0)), ("ece", "no pixel", "mask")),
    "bins of two kinds": (lambda: calibration_bins(P, Y, 10) + calibration_bins(P, Y, 15), ("10 bins", "15")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_an_error_that_names_it(mistake):
    act, keys = MISTAKES[mistake]
    with pytest.raises(UserError) as caught:
        act()
    assert [key for key in keys if key not in str(caught.value)] == [], str(caught.value)
