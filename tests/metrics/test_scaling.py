"""Scaling of probabilities: recovers a known distortion, halves the calibration error, keeps zeros."""

import pytest
import torch

from stochseg.errors import UserError
from stochseg.metrics import ece, foreground_bins
from stochseg.metrics.scaling import fit_scaling, scale_probabilities


@pytest.mark.parametrize("labels", [2, 4])
def test_recovers_a_known_distortion(labels):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, labels, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    slope, bias = torch.linspace(0.5, 2, labels).double(), torch.linspace(0, 1, labels).double()
    # The inverse of the scaling, up to its normalization: a pixel's log p = (log truth + c - bias) / slope sums to 1.
    low, high = torch.full((2000, 1), -200.0).double(), torch.full((2000, 1), 200.0).double()
    for _ in range(200):
        c = (low + high) / 2
        above = ((truth.log() + c - bias) / slope).exp().sum(1, keepdim=True) > 1
        low, high = torch.where(above, low, c), torch.where(above, c, high)
    distorted = ((truth.log() + low - bias) / slope).exp()
    found = fit_scaling(distorted, truth * 4)
    assert torch.allclose(scale_probabilities(distorted, *found), truth, atol=1e-3)


def test_temperature_is_that_of_the_distortion():
    truth = torch.linspace(-3, 3, 101).double()[:, None] * torch.tensor([-0.5, 0.5]).double()
    slope, bias = fit_scaling((3 * truth).softmax(1), truth.softmax(1), "temperature")
    assert slope == pytest.approx([1 / 3, 1 / 3], rel=1e-4)
    assert bias == [0, 0]


def test_halves_the_foreground_error_of_overconfident_maps():
    generator = torch.Generator().manual_seed(1)
    logit = torch.randn(1, 1, 64, 64, generator=generator) * 2
    truth = torch.cat([-logit, logit], 1).div(2).softmax(1)
    raters = (torch.rand(1, 4, 64, 64, generator=generator) < truth[:, 1:]).long()
    mean = torch.cat([-logit, logit], 1).mul(2).softmax(1)
    votes = torch.stack([4 - raters.sum(1), raters.sum(1)], -1).reshape(-1, 2)
    found = fit_scaling(mean.movedim(1, -1).reshape(-1, 2), votes)
    after = scale_probabilities(mean, *found)
    assert ece(foreground_bins(after, raters)) < ece(foreground_bins(mean, raters)) / 2


def test_zero_stays_zero_and_votes_for_it_do_not_count():
    p = torch.tensor([[1.0, 0.0], [0.4, 0.6], [0.5, 0.5]])
    slope, bias = fit_scaling(p, torch.tensor([[3, 5], [2, 2], [2, 2]]))
    assert scale_probabilities(p, slope, bias)[0].tolist() == [1, 0]


def test_mistakes():
    with pytest.raises(UserError, match="got 'platt'"):
        fit_scaling(torch.ones(1, 2) / 2, torch.ones(1, 2), "platt")
    with pytest.raises(UserError, match="got none"):
        fit_scaling(torch.ones(1, 2) / 2, torch.zeros(1, 2))
    with pytest.raises(UserError, match="shapes"):
        scale_probabilities(torch.ones(1, 2, 3) / 2, [1.0], [0.0])
