"""Samples of probability maps have their margins, and outlines that move as a whole."""

import itertools

import numpy as np
import pytest
import torch

from stochseg.analysis import sample_soft_map
from stochseg.errors import UserError


def soft_disc(side=24, classes=2):
    """A probability map "l h w" whose foreground fades out from the center."""
    y, x = np.mgrid[:side, :side] - side / 2
    far = np.hypot(y, x) / (side / 2)
    logits = np.stack([4 * (far - 0.6), *(np.full_like(far, -i) for i in range(classes - 1))])
    p = np.exp(logits - logits.max(0))
    return p / p.sum(0)


@pytest.mark.parametrize("classes", [2, 4])
def test_shared_uniforms_keep_every_margin_within_one_over_n(classes):
    soft, n = soft_disc(classes=classes), 50
    samples = sample_soft_map(soft, n, seed=3)
    below = np.cumsum(samples.frequency[0].numpy(), 0)
    assert np.abs(below - np.cumsum(soft, 0)).max() <= 1 / n + 1e-6
    assert torch.equal(samples.mean[0], torch.from_numpy(soft).float())


def test_shared_uniforms_give_nested_outlines():
    labels = sample_soft_map(soft_disc(), 12).labels[0]
    order = labels.flatten(1).sum(1).argsort()
    for small, large in itertools.pairwise(order):
        assert (labels[small] <= labels[large]).all()


def test_a_length_keeps_margins_and_makes_far_places_independent():
    soft = np.full((2, 12, 12), 0.5)
    labels = sample_soft_map(soft, 600, coherence=1.5).labels[0].double()
    margin = labels.mean(0)
    assert float((margin - 0.5).abs().max()) < 5 * 0.5 / 600**0.5
    signs = 2 * labels - 1
    assert float((signs[:, 0, 0] * signs[:, 0, 1]).mean()) > 0.3
    assert abs(float((signs[:, 0, 0] * signs[:, 11, 11]).mean())) < 0.2


def test_samples_depend_on_seed_and_map_alone():
    soft = soft_disc()
    first, second = (sample_soft_map(soft, n, coherence=4.0, seed=1).labels[0, :3] for n in (3, 5))
    assert torch.equal(first, second)
    assert not torch.equal(first, sample_soft_map(soft, 3, coherence=4.0, seed=2).labels[0])


@pytest.mark.parametrize("wrong", [np.full((2, 4, 4), 0.9), np.full((2, 4, 4), np.nan), np.zeros((2, 4, 4), int)])
def test_values_that_are_no_probabilities_are_refused(wrong):
    with pytest.raises(UserError, match="sample_soft_map"):
        sample_soft_map(wrong)


def test_arrays_of_any_memory_order_and_rounding_are_sampled():
    soft = soft_disc()
    assert torch.equal(sample_soft_map(soft[..., ::-1], 3).mean[0], torch.tensor(soft[..., ::-1].copy()).float())
    rounded = np.stack([np.full((3, 3), 1.004), np.full((3, 3), -0.004)])
    assert (sample_soft_map(rounded, 3).entropy == 0).all()
