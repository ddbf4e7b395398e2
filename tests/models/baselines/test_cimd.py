"""CIMD: its three losses against independent references, and sampling without the ambiguity encoders."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from stochseg.models import create
from stochseg.models.baselines.cimd import mask_codes
from tests.support.models import fresh, images, labels, perturb

IMAGE, KEYS = images(12, 1, 8, 8), [(4, i) for i in range(12)]


def cimd(classes=2, **config):
    return perturb(fresh("cimd", classes, num_timesteps=12, latent=3, **config), 0.2)


def noised(model, raters):
    return model.noised(raters, None, torch.full((len(IMAGE),), 2), KEYS)


def test_label_map_has_one_channel_for_two_classes_and_one_per_class_for_more():
    assert mask_codes(2).tolist() == [[-1], [1]]
    assert mask_codes(3).tolist() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]


def test_label_of_several_classes_is_the_largest_channel():
    x0 = torch.randn(2, 4, 5, 5)
    assert torch.equal(cimd(4).decode(x0), x0.argmax(1))


@pytest.mark.parametrize("classes", [2, 3])
def test_bound_is_the_divergence_of_two_gaussians(classes):
    """Terms of each example against torch.distributions in float64, with coefficients computed from the betas."""
    model = cimd(classes)
    batch = noised(model, labels(12, 2, classes, 8, 8))
    eps, v = model._heads(batch.x_t, batch.t, model.net.encode(IMAGE))
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
        comparable = torch.isfinite(expected) & (expected < 30)  # the cdf of the reference has no digits left beyond it
        assert comparable.any()
        torch.testing.assert_close(terms[i].double()[comparable], expected[comparable], rtol=2e-3, atol=1e-4)


def test_loss_is_the_weighted_sum_of_three_parts():
    model, raters = cimd(vlb_weight=0.02, ambiguity_weight=0.3), labels(12, 2, 2, 8, 8)
    out = model(IMAGE, raters, keys=KEYS)
    batch = noised(model, raters)
    eps, v = model._heads(batch.x_t, batch.t, model.net.encode(IMAGE))
    torch.testing.assert_close(out["noise"], ((eps - batch.eps) ** 2).mean())
    torch.testing.assert_close(out["bound"], 12 * model.bound_terms(batch, eps, v).mean())

    def gaussian(encoder, maps):
        mean, log_variance = encoder(IMAGE, maps)
        return Independent(Normal(mean, (0.5 * log_variance).exp()), 1)

    divergence = kl_divergence(gaussian(model.posterior, batch.x0), gaussian(model.prior, eps))
    torch.testing.assert_close(out["ambiguity"], divergence.mean())
    torch.testing.assert_close(out["loss"], out["noise"] + 0.02 * out["bound"] + 0.3 * out["ambiguity"])
    assert not any(out[part].requires_grad for part in ("noise", "bound", "ambiguity"))


def head_gradient(**weights):
    """Gradient of the loss with respect to the last layer: the weights of the noise, then those of the variance."""
    model = cimd(**weights)
    model(IMAGE, labels(12, 2, 2, 8, 8), keys=KEYS)["loss"].backward()
    return model.net.unet.head[2].weight.grad


def test_bound_trains_the_variance_only():
    without, with_it = (head_gradient(vlb_weight=weight, ambiguity_weight=0.0) for weight in (0.0, 1.0))
    torch.testing.assert_close(with_it[0], without[0])
    assert without[1].abs().max() == 0
    assert with_it[1].abs().max() > 0


def test_ambiguity_loss_trains_the_network():
    without, with_it = (head_gradient(vlb_weight=0.0, ambiguity_weight=weight) for weight in (0.0, 1.0))
    assert (with_it[0] - without[0]).abs().max() > 1e-4


def test_sampling_ignores_the_ambiguity_encoders():
    model, image = cimd(), IMAGE[:1]
    before = model.sample(image, 2).labels
    with torch.no_grad():
        for encoder in (model.prior, model.posterior):
            for parameter in encoder.parameters():
                parameter.fill_(math.nan)
    assert torch.equal(model.sample(image, 2).labels, before)


def test_learned_variance_changes_samples():
    model, image = cimd(), IMAGE[:1]
    before = model.sample(image, 8).mean
    with torch.no_grad():
        model.net.unet.head[2].bias[1] += 1.0
    assert not torch.allclose(model.sample(image, 8).mean, before)


def test_default_diffuses_for_a_thousand_steps():
    model = create("cimd")
    assert model.process.num_timesteps == 1000
    assert sum(p.numel() for p in model.net.parameters()) == pytest.approx(9.06e6, rel=0.005)
