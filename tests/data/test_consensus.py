"""Consensus of raters, compared with SimpleITK and with brute force."""

import numpy as np
import pytest
import SimpleITK

from stochseg.data.consensus import majority, staple
from stochseg.errors import UserError


def noisy_raters(classes, size=(14, 16), errors=(0.02, 0.1, 0.25, 0.05), seed=0):
    """A truth of blocks, and raters who err with these chances."""
    rng = np.random.default_rng(seed)
    truth = np.kron(rng.integers(0, classes, (7, 4)), np.ones((2, 4), int))[: size[0], : size[1]]
    wrong = (truth + rng.integers(1, classes, (len(errors), *truth.shape))) % classes
    return truth, np.where(rng.random(wrong.shape) < np.array(errors)[:, None, None], wrong, truth)


def test_two_classes_agree_with_simpleitk():
    truth, maps = noisy_raters(2)
    found = staple(maps, 2)
    itk = SimpleITK.STAPLEImageFilter()
    itk.SetForegroundValue(1)
    itk.SetMaximumIterations(1000)
    theirs = SimpleITK.GetArrayFromImage(itk.Execute([SimpleITK.GetImageFromArray(m.astype(np.uint8)) for m in maps]))
    assert np.abs(found.probabilities[1] - theirs).max() < 1e-3
    assert np.allclose(found.confusion[:, 1, 1], itk.GetSensitivity(), atol=1e-3)
    assert np.allclose(found.confusion[:, 0, 0], itk.GetSpecificity(), atol=1e-3)
    assert (found.labels == truth).mean() > (majority(maps, 2) == truth).mean() - 1e-9


def test_several_classes_agree_with_simpleitk():
    _, maps = noisy_raters(4, seed=3)
    itk = SimpleITK.MultiLabelSTAPLEImageFilter()
    itk.SetTerminationUpdateThreshold(1e-9)
    itk.SetMaximumNumberOfIterations(1000)
    theirs = SimpleITK.GetArrayFromImage(itk.Execute([SimpleITK.GetImageFromArray(m.astype(np.uint8)) for m in maps]))
    decided = theirs < 4  # ITK has a label for ties
    assert (staple(maps, 4).labels[decided] == theirs[decided]).mean() > 0.98, "ITK starts from the majority"


def brute_force(maps, classes, steps):
    """The same algorithm pixel by pixel, with loops."""
    k, pixels = maps.shape
    prior = [np.mean(maps == label) for label in range(classes)]
    off = (1 - 0.99999) / (classes - 1)
    theta = [[[0.99999 if s == t else off for s in range(classes)] for t in range(classes)] for _ in range(k)]
    for _ in range(steps):
        w = np.zeros((pixels, classes))
        for i in range(pixels):
            for t in range(classes):
                w[i, t] = prior[t]
                for j in range(k):
                    w[i, t] *= theta[j][t][maps[j, i]]
            w[i] /= w[i].sum()
        theta = [
            [[w[maps[j] == s, t].sum() / w[:, t].sum() for s in range(classes)] for t in range(classes)]
            for j in range(k)
        ]
    return w


def test_steps_are_those_of_the_paper(monkeypatch):
    monkeypatch.setattr("stochseg.data.consensus.MAX_STEPS", 4)
    _, maps = noisy_raters(3, size=(4, 5))
    maps = maps[:, :4, :5].reshape(4, -1)
    assert np.allclose(staple(maps, 3, tolerance=0).probabilities.T, brute_force(maps, 3, 5), atol=1e-9)


def test_raters_who_agree_are_right_and_void_does_not_vote():
    same = np.array([[0, 1, 2, 1]] * 3)
    assert staple(same, 3).labels.tolist() == [0, 1, 2, 1]
    void = np.array([[0, 1, 255, 0], [0, 1, 1, 255], [0, 1, 1, 0]])
    assert staple(void, 2, ignore=255).labels.tolist() == [0, 1, 1, 0]
    assert majority(np.array([[255, 1], [255, 255]]), 2, ignore=255).tolist() == [255, 1]


def test_other_labels_are_refused():
    with pytest.raises(UserError, match="got 7"):
        staple(np.array([[0, 7]]), 2)
    with pytest.raises(UserError, match="integers"):
        majority(np.zeros((2, 3)), 2)
