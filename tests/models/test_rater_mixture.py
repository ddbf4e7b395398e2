"""Frequencies of raters, and draws of them."""

import torch

from stochseg.models.rater_mixture import RaterMixture, draw_raters


def test_probabilities_are_frequencies_and_the_last_place_is_for_raters_without_a_name():
    mixture = RaterMixture(3)
    mixture.observe(torch.tensor([0, 2, 2]))
    mixture.observe(torch.tensor([-1]))
    torch.testing.assert_close(mixture.probabilities, torch.tensor([1, 0, 2, 1]) / 4)


def test_named_raters_are_equally_probable_before_any_training():
    assert RaterMixture(2).probabilities.tolist() == [0.5, 0.5, 0.0]
    assert RaterMixture(0).probabilities.tolist() == [1.0]


def test_draws_invert_the_cumulated_probabilities_and_never_give_a_rater_of_probability_zero():
    mixture = RaterMixture(3)
    mixture.observe(torch.tensor([0, 2, 2, 2]))
    u = (torch.arange(1000) + 0.5) / 1000
    assert torch.bincount(draw_raters(mixture.probabilities, u), minlength=4).tolist() == [250, 0, 750, 0]
