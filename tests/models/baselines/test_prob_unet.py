"""Probabilistic U-Net: posterior in training, prior in sampling, and the loss as written down."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise, standard_normal
from stochseg.models import create
from stochseg.networks.latents import Gaussian
from tests.support.readings import learn

TINY = {"channels": [4, 8], "convs": 1, "latent": 2}


def prob_unet(classes=2, **config):
    torch.manual_seed(0)
    return create("prob-unet", classes, 1, **{**TINY, **config})


def image(b=2, size=8):
    return torch.rand(b, 1, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def labels(b=2, k=1, classes=2, size=8):
    return torch.randint(classes, (b, k, size, size), generator=torch.Generator().manual_seed(2))


def test_loss_is_cross_entropy_at_a_draw_of_the_posterior_and_kl():
    """From the parts of the model, by hand: Σ CE + 10 KL + l2 ½‖w‖², a pixel."""
    model, x, y, keys = prob_unet(3, l2=0.01), image(), labels(classes=3), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    q = model.posterior(torch.cat([x, F.one_hot(y[:, 0], 3).permute(0, 3, 1, 2).float()], 1))
    p = model.prior(x)
    z = q.mean + q.log_sigma.exp() * standard_normal(noise, (2, 2))
    features = model.combiner.from_features(model.expanding(*reversed_levels(model, x)))
    sums = F.cross_entropy(model.combiner(features, z), y[:, 0], reduction="none").sum((1, 2))
    norm = sum((w**2).sum() for w in model.parameters())
    expected = (sums.mean() + 10 * q.kl(p).mean() + 0.01 * norm / 2) / 64
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["kl"], q.kl(p).mean())
    assert not out["kl"].requires_grad


def reversed_levels(model, x):
    *finer, coarsest = model.contracting(x)
    return coarsest, finer


def test_the_split_convolution_is_the_one_of_features_joined_with_tiled_z():
    combiner = prob_unet().combiner
    features, z = torch.randn(2, 4, 5, 6), torch.randn(2, 2)
    weight = torch.cat([combiner.from_features.weight, combiner.from_latent.weight[:, :, None, None]], 1)
    joined = torch.cat([features, z[:, :, None, None].expand(-1, -1, 5, 6)], 1)
    expected = combiner.rest(F.conv2d(joined, weight, combiner.from_features.bias))
    torch.testing.assert_close(combiner(combiner.from_features(features), z), expected)


def test_sampling_uses_the_prior_and_training_the_posterior(monkeypatch):
    """Prior at -3, posterior at +3, both of tiny spread: where z comes from is seen in z itself."""
    model, seen = prob_unet(), []

    def fixed(at):
        return lambda x: Gaussian(torch.full((len(x), 2), at), torch.full((len(x), 2), -5.0))

    monkeypatch.setattr(model.prior, "forward", fixed(-3.0))
    monkeypatch.setattr(model.posterior, "forward", fixed(3.0))
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda condition, z: seen.append(z) or logits(condition, z))
    model(image(), labels())
    assert (seen.pop() - 3).abs().max() < 0.1
    model.sample(image(), 3)
    assert (seen.pop() + 3).abs().max() < 0.1


def test_samples_of_an_image_share_one_pass_of_the_networks(monkeypatch):
    model, calls = prob_unet(), []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda x: calls.append(len(x)) or encode(x))
    monkeypatch.setattr(model.posterior, "forward", lambda x: pytest.fail("the posterior needs labels"))
    model.sample(image(), 5)
    assert calls == [2]


def test_chunks_change_nothing_and_progress_counts_them():
    x, seen = image(2, 64), []
    whole = prob_unet(chunk=64).sample(x, 5)
    parts = prob_unet(chunk=1).sample(x, 5, progress=lambda *now: seen.append(now))
    assert torch.equal(whole.labels, parts.labels)
    torch.testing.assert_close(whole.mean, parts.mean)
    assert seen == [(1, 3), (2, 3), (3, 3)], "four samples of 64×64 fit where one of 128×128 does"


def test_default_is_the_lidc_model():
    config = create("prob-unet", 2, 1).config
    assert (config.channels, config.latent, config.beta) == ((32, 64, 128, 192, 192), 6, 10.0)


def test_both_readings_are_drawn_with_their_frequencies():
    one, zero = learn(prob_unet(channels=[8]), steps=200, lr=5e-3, batch=16)
    assert 0.55 < one < 0.85
    assert 0.15 < zero < 0.45
