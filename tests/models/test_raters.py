"""Random choice of raters in training."""

import torch
from scipy import stats

from stochseg.models.raters import pick_raters


def test_raters_are_drawn_uniformly_for_any_number_of_raters():
    """Chi-square over 6000 draws for images of 2 and 3 raters, false-alarm rate 1e-6."""
    u = torch.rand(6000, generator=torch.Generator().manual_seed(0))
    for count in (2, 3):
        picked = pick_raters(u, torch.full((6000,), count))[:, 0]
        assert stats.chisquare(torch.bincount(picked, minlength=count)).pvalue > 1e-6


def test_three_draws_of_three_raters_take_each_once():
    several = pick_raters(torch.rand(100), torch.full((100,), 3), draws=3)
    assert (several.sort(1).values == torch.arange(3)).all()
