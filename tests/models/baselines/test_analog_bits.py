"""Analog Bits: encoding and decoding of labels, and self-conditioning in training and sampling."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from stochseg.models import create
from stochseg.models.baselines.analog_bits import bit_codes
from tests.support.models import fresh


def estimates(classes, count=400, scale=1.0):
    """Random estimates of the bits, "1 bits count 1"."""
    bits = bit_codes(classes).shape[1]
    return scale * torch.randn(1, bits, count, 1, generator=torch.Generator().manual_seed(0))


# --- labels and bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (19, 5), (256, 8)])
def test_code_of_a_label_is_its_binary_number(classes, bits):
    codes = bit_codes(classes)
    assert codes.shape == (classes, bits)
    for label in range(classes):
        assert [int(b) for b in reversed(f"{label:0{bits}b}")] == ((codes[label] + 1) / 2).tolist()


@pytest.mark.parametrize("classes", range(2, 20))
def test_decoding_inverts_encoding(classes):
    model = fresh("analog-bits", classes)
    labels = torch.arange(classes).view(1, classes, 1)
    assert torch.equal(model.decode(model.encode_labels(labels)), labels)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11, 19])
def test_any_estimate_decodes_to_the_nearest_label(classes):
    x0 = estimates(classes)
    decoded = fresh("analog-bits", classes).decode(x0)[0, :, 0]
    assert decoded.max() < classes, "an unused code was decoded"
    distance = torch.cdist(x0[0, :, :, 0].T, bit_codes(classes))
    assert torch.equal(decoded, distance.argmin(1))


@pytest.mark.parametrize("classes", [2, 4, 16])
def test_decoding_thresholds_at_zero_if_all_codes_are_used(classes):
    x0 = estimates(classes)
    weight = 2 ** torch.arange(x0.shape[1])
    expected = ((x0[0, :, :, 0] > 0).T * weight).sum(1)
    assert torch.equal(fresh("analog-bits", classes).decode(x0)[0, :, 0], expected)


@pytest.mark.parametrize("classes", [2, 3, 4, 6])
def test_probabilities_are_those_of_independent_bits_renormalized_over_the_used_codes(classes):
    x0 = estimates(classes, scale=0.4).clamp(-0.99, 0.99)
    bits = x0.shape[1]
    table = torch.zeros(2**bits, x0.shape[2])
    for code in product((0, 1), repeat=bits):  # every code, the lowest bit first
        p = [(1 + x0[0, i, :, 0]) / 2 if bit else (1 - x0[0, i, :, 0]) / 2 for i, bit in enumerate(code)]
        table[sum(bit << i for i, bit in enumerate(code))] = torch.stack(p).prod(0)
    expected = table[:classes] / table[:classes].sum(0)
    found = fresh("analog-bits", classes).probabilities(x0)[0, :, :, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_certain_estimate_of_an_unused_code_gives_its_neighbors_equal_probabilities():
    p = fresh("analog-bits", 3).probabilities(torch.ones(1, 2, 1, 1)).flatten()
    assert torch.isfinite(p).all()
    assert p[1].item() == pytest.approx(p[2].item())
    assert p[1] > 0.49


# --- self-conditioning --------------------------------------------------------------------------------------


@pytest.fixture
def watched(monkeypatch):
    """A model whose network returns 0.25 and records its calls: (x_t and previous estimate "b 2 h w", t, gradient)."""

    def make(**config):
        model, calls = fresh("analog-bits", **config), []

        def net(maps, t, condition):
            calls.append((maps.detach(), t, torch.is_grad_enabled()))
            return torch.full_like(maps[:, :1], 0.25).requires_grad_(torch.is_grad_enabled())

        monkeypatch.setattr(model.net, "forward", net)
        return model, calls

    return make


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_training_sees_its_own_estimate_with_the_given_probability(watched, probability):
    model, calls = watched(self_conditioning=probability)
    model(torch.zeros(1000, 1, 2, 2), torch.zeros(1000, 1, 2, 2, dtype=torch.int64), keys=[(i,) for i in range(1000)])
    maps, t, gradient = calls[-1]
    assert gradient
    seen = maps[:, 1].flatten(1)
    assert set(seen.unique().tolist()) <= {0.0, 0.25}
    assert (seen == seen[:, :1]).all(), "an example has an estimate at all pixels or at none"
    chosen = seen[:, 0] == 0.25
    assert chosen.float().mean().item() == pytest.approx(probability, abs=0.06)
    assert len(calls) == (1 if probability == 0 else 2)
    if probability > 0:
        first, at, first_gradient = calls[0]
        assert not first_gradient
        assert (first[:, 1] == 0).all()
        assert torch.equal(first[:, 0], maps[chosen, 0]), "the estimate is of the same x_t"
        assert torch.equal(at, t[chosen])


def test_sampling_passes_the_estimate_to_the_next_step(watched):
    model, calls = watched()
    model.sample(torch.zeros(1, 1, 2, 2), 3, evaluations=4)
    assert [maps[:, 1].unique().tolist() for maps, _, _ in calls] == [[0.0], [0.25], [0.25], [0.25]]


def test_sampling_without_self_conditioning_passes_no_estimate(watched):
    """The weights of an estimate that training never showed are random."""
    model, calls = watched(self_conditioning=0.0)
    model.sample(torch.zeros(1, 1, 2, 2), 3, evaluations=4)
    assert [maps[:, 1].unique().tolist() for maps, _, _ in calls] == [[0.0]] * 4


def test_loss_is_the_squared_error_of_the_bits(watched):
    model, _ = watched(self_conditioning=0.0)
    labels = torch.tensor([[0, 1], [1, 1]])[None, None]
    loss = model(torch.zeros(1, 1, 2, 2), labels)["loss"].item()
    assert loss == pytest.approx((1.25**2 + 3 * 0.75**2) / 4)


def test_default_is_the_lidc_network():
    count = sum(p.numel() for p in create("analog-bits").parameters())
    assert count == pytest.approx(9.06e6, rel=0.005)
