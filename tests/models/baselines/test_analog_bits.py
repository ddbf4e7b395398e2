"""Analog Bits: labels as bits and back, and self-conditioning in training and sampling."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from stochseg.models import create
from stochseg.models.baselines.analog_bits import bit_codes

TINY = {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": [], "num_timesteps": 20}


def analog(classes=2, **config):
    torch.manual_seed(0)
    return create("analog-bits", classes, 1, **{**TINY, **config})


def estimates(classes, count=400, spread=1.0):
    """Estimates of the bits, "1 bits count 1"."""
    bits = bit_codes(classes).shape[1]
    return spread * torch.randn(1, bits, count, 1, generator=torch.Generator().manual_seed(0))


# --- labels and bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (19, 5), (256, 8)])
def test_a_label_is_its_binary_number(classes, bits):
    codes = bit_codes(classes)
    assert codes.shape == (classes, bits)
    for label in range(classes):
        assert [int(b) for b in reversed(f"{label:0{bits}b}")] == ((codes[label] + 1) / 2).tolist()


@pytest.mark.parametrize("classes", range(2, 20))
def test_every_label_survives_the_way_there_and_back(classes):
    model = analog(classes)
    labels = torch.arange(classes).view(1, classes, 1)
    assert torch.equal(model.decode(model.encode_labels(labels)), labels)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11, 19])
def test_whatever_the_network_says_is_read_as_the_nearest_label(classes):
    x0 = estimates(classes)
    decoded = analog(classes).decode(x0)[0, :, 0]
    assert decoded.max() < classes, "a code that is no label was read"
    distance = torch.cdist(x0[0, :, :, 0].T, bit_codes(classes))
    assert torch.equal(decoded, distance.argmin(1))


@pytest.mark.parametrize("classes", [2, 4, 16])
def test_with_all_codes_in_use_reading_is_a_threshold_at_zero(classes):
    x0 = estimates(classes)
    weight = 2 ** torch.arange(x0.shape[1])
    assert torch.equal(analog(classes).decode(x0)[0, :, 0], ((x0[0, :, :, 0] > 0).T * weight).sum(1))


@pytest.mark.parametrize("classes", [2, 3, 4, 6])
def test_probabilities_are_those_of_independent_bits_without_the_codes_of_no_label(classes):
    x0 = estimates(classes, spread=0.4).clamp(-0.99, 0.99)
    bits = x0.shape[1]
    table = torch.zeros(2**bits, x0.shape[2])
    for code in product((0, 1), repeat=bits):  # every code, the lowest bit first
        p = [(1 + x0[0, i, :, 0]) / 2 if bit else (1 - x0[0, i, :, 0]) / 2 for i, bit in enumerate(code)]
        table[sum(bit << i for i, bit in enumerate(code))] = torch.stack(p).prod(0)
    expected = table[:classes] / table[:classes].sum(0)
    torch.testing.assert_close(analog(classes).probabilities(x0)[0, :, :, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_sure_code_of_no_label_leaves_the_neighbors_equal():
    p = analog(3).probabilities(torch.ones(1, 2, 1, 1)).flatten()
    assert torch.isfinite(p).all()
    assert p[1].item() == pytest.approx(p[2].item())
    assert p[1] > 0.49


# --- self-conditioning --------------------------------------------------------------------------------------


@pytest.fixture
def watched(monkeypatch):
    """A model whose network says 0.25 and notes what it was given: (x_t and previous "b 2 h w", gradients on)."""

    def make(**config):
        model, calls = analog(**config), []

        def net(maps, t, condition):
            calls.append((maps.detach(), t, torch.is_grad_enabled()))
            return torch.full_like(maps[:, :1], 0.25).requires_grad_(torch.is_grad_enabled())

        monkeypatch.setattr(model.net, "forward", net)
        return model, calls

    return make


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_training_sees_its_own_estimate_as_often_as_asked(watched, share):
    model, calls = watched(self_conditioning=share)
    model(torch.zeros(1000, 1, 2, 2), torch.zeros(1000, 1, 2, 2, dtype=torch.int64), keys=[(i,) for i in range(1000)])
    maps, t, gradient = calls[-1]
    assert gradient
    seen = maps[:, 1].flatten(1)
    assert set(seen.unique().tolist()) <= {0.0, 0.25}
    assert (seen == seen[:, :1]).all(), "an example has an estimate everywhere or nowhere"
    chosen = seen[:, 0] == 0.25
    assert chosen.float().mean().item() == pytest.approx(share, abs=0.06)
    assert len(calls) == (1 if share == 0 else 2)
    if share > 0:
        first, at, first_gradient = calls[0]
        assert not first_gradient
        assert (first[:, 1] == 0).all()
        assert torch.equal(first[:, 0], maps[chosen, 0]), "the estimate is made at the same x_t"
        assert torch.equal(at, t[chosen])


def test_sampling_hands_each_step_the_estimate_of_the_one_before(watched):
    model, calls = watched()
    model.sample(torch.zeros(1, 1, 2, 2), 3, evaluations=4)
    assert [maps[:, 1].unique().tolist() for maps, _, _ in calls] == [[0.0], [0.25], [0.25], [0.25]]


def test_without_self_conditioning_sampling_hands_on_nothing(watched):
    """Weights for an estimate that training never showed are random."""
    model, calls = watched(self_conditioning=0.0)
    model.sample(torch.zeros(1, 1, 2, 2), 3, evaluations=4)
    assert [maps[:, 1].unique().tolist() for maps, _, _ in calls] == [[0.0]] * 4


def test_the_loss_is_the_squared_error_of_the_bits(watched):
    model, _ = watched(self_conditioning=0.0)
    labels = torch.tensor([[0, 1], [1, 1]])[None, None]
    loss = model(torch.zeros(1, 1, 2, 2), labels)["loss"].item()
    assert loss == pytest.approx((1.25**2 + 3 * 0.75**2) / 4)


# --- the whole ----------------------------------------------------------------------------------------------


def test_two_readings_are_sampled_with_their_frequencies(two_readings):
    shares = two_readings("analog-bits", steps=200, lr=5e-3)
    assert sum(shares) > 0.85
    assert shares[0] == pytest.approx(0.7, abs=0.2)


def test_the_default_is_the_lidc_network():
    count = sum(p.numel() for p in create("analog-bits", 2, 1).parameters())
    assert count == pytest.approx(9.06e6, rel=0.005)
