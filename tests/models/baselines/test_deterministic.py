"""Deterministic models: samples are the arg-max, or independent draws of every pixel."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from stochseg.errors import UserError
from tests.support.models import fresh


def constant(logits, **config):
    """A model that predicts these logits at every pixel."""
    model = fresh("unet-ce", len(logits), **config)
    with torch.no_grad():
        model.unet.head[2].bias += torch.tensor(logits)
    return model


def test_argmax_repeats_one_label_map():
    out = constant([0.0, 1.0, 0.5]).sample(torch.zeros(1, 1, 8, 8), 5)
    assert (out.labels == 1).all()
    torch.testing.assert_close(out.mean[0, :, 0, 0], torch.tensor([0.0, 1.0, 0.5]).softmax(0))


def test_pixels_are_drawn_from_their_own_probabilities():
    """Chi-square over 20 samples of 32×32 pixels, false-alarm rate 1e-6; neighbors are independent."""
    out = constant([0.0, 1.0, 0.5], draw="pixels").sample(torch.zeros(1, 1, 32, 32), 20)
    counts = torch.bincount(out.labels.flatten(), minlength=3)
    p = torch.tensor([0.0, 1.0, 0.5]).double().softmax(0)
    assert stats.chisquare(counts, (p * counts.sum()).numpy()).pvalue > 1e-6
    same = (out.labels[..., 1:] == out.labels[..., :-1]).float().mean().item()
    assert same == pytest.approx((p**2).sum().item(), abs=0.02)
    assert not torch.equal(out.labels[:, 0], out.labels[:, 1])


def test_unknown_way_to_draw_is_refused():
    with pytest.raises(UserError, match="(?s)draw.*argmax.*pixels.*gibbs"):
        fresh("unet-ce", draw="gibbs")
