"""Agreement of samples and raters against hand-made cases."""

import numpy as np
import pytest
import torch

import stochseg
from stochseg.data import Phantoms
from stochseg.metrics import diversity
from stochseg.reports.agreement import Agreement
from stochseg.types import Batch, Samples


def test_weights_count_in_the_distance_of_samples():
    data = Phantoms("val", size=16, count=1)
    batch = Batch.collate([data[0]])
    labels = torch.randint(2, (1, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    for weights, expected in (
        ([0.5, 0.5, 0.0], diversity(labels[:, :2], 2, unbiased=True).item()),
        ([1.0, 0.0, 0.0], 0.0),
    ):
        found = Agreement(2)
        found(0, batch, Samples(labels, torch.full((1, 2, 16, 16), 0.5), torch.tensor([weights]), 0))
        assert found.sample_distance == [pytest.approx(expected)]


def test_distance_and_entropy_of_raters_skip_void():
    labels = torch.tensor([[[1, 1, 0]], [[1, 0, 0]], [[0, 0, 0]]])
    example = stochseg.Example(torch.zeros(1, 1, 3), labels, "x")
    found = Agreement(2)
    half = stochseg.Samples(
        torch.zeros(1, 2, 1, 3, dtype=torch.long), torch.full((1, 2, 1, 3), 0.5), torch.ones(1, 2), 0
    )
    found(0, Batch.collate([example]), half)
    assert found.rater_distance == [pytest.approx((0.5 + 1 + 1) / 3)]
    theirs = -sum(p * np.log(p) + (1 - p) * np.log(1 - p) for p in (2 / 3, 1 / 3))
    assert found.entropy == [pytest.approx((theirs, 3 * np.log(2)))]
    void = stochseg.Example(torch.zeros(1, 1, 3), torch.tensor([[[1, 1, 9]], [[1, 9, 0]]]), "y")
    found(1, Batch.collate([void], ignore=9), half)
    assert found.rater_distance[1] == 0
    assert found.entropy[1] == pytest.approx((0, np.log(2)))
