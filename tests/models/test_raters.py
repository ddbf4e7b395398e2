"""Raters: random choice in training, and their names."""

import pytest
import torch
from scipy import stats

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models.raters import draw_pairs, one_rater, pick_raters, rater_number
from tests.support.models import fresh, images


def test_raters_are_drawn_uniformly_for_any_number_of_raters():
    """Chi-square over 6000 draws for images of 2 and 3 raters, false-alarm rate 1e-6."""
    u = torch.rand(6000, generator=torch.Generator().manual_seed(0))
    for count in (2, 3):
        picked = pick_raters(u, torch.full((6000,), count))[:, 0]
        assert stats.chisquare(torch.bincount(picked, minlength=count)).pvalue > 1e-6


def test_three_draws_of_three_raters_take_each_once():
    several = pick_raters(torch.rand(100), torch.full((100,), 3), draws=3)
    assert (several.sort(1).values == torch.arange(3)).all()


@pytest.mark.parametrize("index", [None, torch.tensor([[2, 0], [-1, 1]])])
def test_targets_know_whose_map_they_are(index):
    maps = torch.arange(4).view(2, 2, 1, 1)
    target = one_rater(maps, None, torch.tensor([2, 2]), SeededNoise([(1,), (2,)]), index)
    rows, pairs, _, _ = draw_pairs(maps, None, torch.tensor([2, 2]), [(1,), (2,)], 2, index)
    if index is None:
        assert target.rater is pairs.rater is None
    else:
        for chosen, image in ((target, torch.arange(2)), (pairs, rows)):
            place = chosen.labels.flatten() - 2 * image
            assert torch.equal(chosen.rater, index[image, place])


@pytest.mark.parametrize(("given", "place"), [("ben", 1), ("0", 0), ("1", 1), ("7", 2)])
def test_raters_are_found_by_name_before_number(given, place):
    assert rater_number(given, ("ana", "ben", "7"), "m") == place


@pytest.mark.parametrize(("names", "message"), [(("ana", "ben"), "0: ana, 1: ben"), ((), "rater_conditioning")])
def test_errors_list_the_known_raters_or_say_how_to_train_a_model_that_has_some(names, message):
    with pytest.raises(UserError, match=message):
        rater_number("dan", names, "m")


def test_models_without_raters_refuse_one():
    model = fresh("ccdm-fast")
    with pytest.raises(UserError, match="omit it, or train a model of raters"):
        model.sample(images(1), n=1, rater="ana")
    with pytest.raises(UserError, match="no choice of guidance"):
        model.sample(images(1), n=1, guidance=0.5)
