"""CIMD: its three losses against independent references, and what sampling does not need."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from stochseg.models import create
from stochseg.models.baselines.cimd import mask_codes

TINY = {
    "base": 8,
    "multipliers": [1, 2],
    "blocks": 1,
    "attention": [],
    "num_timesteps": 12,
    "ambiguity_channels": [8, 8],
    "latent": 3,
}


def cimd(classes=2, **config):
    torch.manual_seed(0)
    model = create("cimd", classes, 1, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def example(classes=2, b=12):
    generator = torch.Generator().manual_seed(1)
    image = torch.rand(b, 1, 8, 8, generator=generator) * 2 - 1
    return image, torch.randint(classes, (b, 2, 8, 8), generator=generator), [(4, i) for i in range(b)]


def noised(model, image, labels, keys):
    return model.noised(labels, None, torch.full((len(image),), 2), keys, image.device)


def test_a_mask_has_one_channel_for_two_classes_and_one_a_class_for_more():
    assert mask_codes(2).tolist() == [[-1], [1]]
    assert mask_codes(3).tolist() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]


def test_with_several_classes_the_largest_channel_is_the_label():
    x0 = torch.randn(2, 4, 5, 5)
    assert torch.equal(cimd(4).decode(x0), x0.argmax(1))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_bound_is_the_divergence_of_the_two_gaussians(classes):
    """Each example's terms against torch.distributions in float64, coefficients from the betas."""
    model = cimd(classes)
    image, labels, keys = example(classes)
    batch = noised(model, image, labels, keys)
    eps, v = model._heads(batch.x_t, batch.t, model.net.encode(image))
    terms = model.bound_terms(batch, eps, v).detach()
    schedule = model.process.schedule
    assert len(set(batch.t.tolist())) > 4
    assert 1 in batch.t
    for i, t in enumerate(batch.t.tolist()):
        bar, before, beta = schedule.alpha_bar[t], schedule.alpha_bar[t - 1], schedule.beta[t]
        x_t, x0, e, frac = (x[i].detach().double() for x in (batch.x_t, batch.x0, eps, v))
        guess = ((x_t - (1 - bar).sqrt() * e) / bar.sqrt()).clamp(-1, 1)

        def mean(x, x_t=x_t, bar=bar, before=before, beta=beta):
            return (before.sqrt() * beta * x + (1 - beta).sqrt() * (1 - before) * x_t) / (1 - bar)

        second = max(t, 2)
        low = schedule.beta[second] * (1 - schedule.alpha_bar[second - 1]) / (1 - schedule.alpha_bar[second])
        p = Normal(mean(guess), (0.5 * (frac * beta.log() + (1 - frac) * low.log())).exp())
        if t == 1:
            below = p.cdf(torch.zeros_like(x0))
            expected = -torch.where(x0 > 0, 1 - below, below).log()
        else:
            expected = kl_divergence(Normal(mean(x0), low.sqrt()), p)
        comparable = torch.isfinite(expected) & (expected < 30)  # beyond it the reference's cdf has no digits left
        assert comparable.any()
        torch.testing.assert_close(terms[i].double()[comparable], expected[comparable], rtol=2e-3, atol=1e-4)


def test_the_loss_is_its_three_weighted_parts():
    model = cimd(vlb_weight=0.02, ambiguity_weight=0.3)
    image, labels, keys = example()
    out = model(image, labels, keys=keys)
    batch = noised(model, image, labels, keys)
    eps, v = model._heads(batch.x_t, batch.t, model.net.encode(image))
    torch.testing.assert_close(out["noise"], ((eps - batch.eps) ** 2).mean())
    torch.testing.assert_close(out["bound"], 12 * model.bound_terms(batch, eps, v).mean())

    def gaussian(encoder, maps):
        mean, log_variance = encoder(image, maps)
        return Independent(Normal(mean, (0.5 * log_variance).exp()), 1)

    divergence = kl_divergence(gaussian(model.posterior, batch.x0), gaussian(model.prior, eps))
    torch.testing.assert_close(out["ambiguity"], divergence.mean())
    torch.testing.assert_close(out["loss"], out["noise"] + 0.02 * out["bound"] + 0.3 * out["ambiguity"])
    assert not any(out[part].requires_grad for part in ("noise", "bound", "ambiguity"))


def test_the_bound_trains_the_variance_alone():
    """With it the gradient of the head's noise channel is what it is without, and that of its variance is not."""
    without, with_it = (head_gradient(vlb_weight=weight, ambiguity_weight=0.0) for weight in (0.0, 1.0))
    torch.testing.assert_close(with_it[0], without[0])
    assert without[1].abs().max() == 0
    assert with_it[1].abs().max() > 0


def test_the_ambiguity_reaches_the_network():
    without, with_it = (head_gradient(vlb_weight=0.0, ambiguity_weight=weight) for weight in (0.0, 1.0))
    assert (with_it[0] - without[0]).abs().max() > 1e-4


def head_gradient(**weights):
    """Of the loss, by the weights of the network's last layer: those of the noise and those of the variance."""
    model = cimd(**weights)
    image, labels, keys = example()
    model(image, labels, keys=keys)["loss"].backward()
    return model.net.unet.head[2].weight.grad


def test_sampling_does_not_need_the_ambiguity_encoders():
    model, image = cimd(), torch.rand(1, 1, 8, 8)
    before = model.sample(image, 2).labels
    with torch.no_grad():
        for encoder in (model.prior, model.posterior):
            for parameter in encoder.parameters():
                parameter.fill_(math.nan)
    assert torch.equal(model.sample(image, 2).labels, before)


def test_the_learned_variance_changes_samples():
    model, image = cimd(), torch.rand(1, 1, 8, 8)
    before = model.sample(image, 8).mean
    with torch.no_grad():
        model.net.unet.head[2].bias[1] += 1.0
    assert not torch.allclose(model.sample(image, 8).mean, before)


def test_two_readings_are_sampled_with_their_frequencies(two_readings):
    shares = two_readings("cimd", steps=250, lr=5e-3, ambiguity_channels=[8], schedule="cosine")
    assert sum(shares) > 0.85
    assert shares[0] == pytest.approx(0.7, abs=0.2)


def test_the_default_diffuses_for_a_thousand_steps():
    model = create("cimd", 2, 1)
    assert model.process.num_timesteps == 1000
    assert sum(p.numel() for p in model.net.parameters()) == pytest.approx(9.06e6, rel=0.005)
