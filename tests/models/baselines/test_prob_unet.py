"""Probabilistic U-Net: its loss, the posterior in training and the prior in sampling."""

import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise, standard_normal
from stochseg.models import create
from stochseg.networks.latents import Gaussian
from tests.support.models import batch_sizes, fresh, images, labels

IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 1, 2, 8, 8)
TINY = {"channels": [4, 8], "convs": 1, "latent": 2}


def test_loss_is_cross_entropy_at_a_draw_of_the_posterior_and_kl():
    """Σ CE + 10 KL + l2 ½‖w‖² per pixel, from the parts of the model."""
    model, x, y, keys = fresh("prob-unet", 3, **TINY, l2=0.01), IMAGE, labels(2, 1, 3, 8, 8), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    q = model.posterior(torch.cat([x, F.one_hot(y[:, 0], 3).permute(0, 3, 1, 2).float()], 1))
    p = model.prior(x)
    z = q.mean + q.log_sigma.exp() * standard_normal(noise, (2, 2))
    *finer, coarsest = model.contracting(x)
    features = model.combiner.from_features(model.expanding(coarsest, *finer))
    sums = F.cross_entropy(model.combiner(features, z), y[:, 0], reduction="none").sum((1, 2))
    norm = sum((w**2).sum() for w in model.parameters())
    expected = (sums.mean() + 10 * q.kl(p).mean() + 0.01 * norm / 2) / 64
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["kl"], q.kl(p).mean())
    assert not out["kl"].requires_grad


def test_split_convolution_equals_that_of_features_joined_with_tiled_latents():
    combiner = fresh("prob-unet", **TINY).combiner
    features, z = torch.randn(2, 4, 5, 6), torch.randn(2, 2)
    weight = torch.cat([combiner.from_features.weight, combiner.from_latent.weight[:, :, None, None]], 1)
    joined = torch.cat([features, z[:, :, None, None].expand(-1, -1, 5, 6)], 1)
    expected = combiner.rest(F.conv2d(joined, weight, combiner.from_features.bias))
    torch.testing.assert_close(combiner(combiner.from_features(features), z), expected)


def test_training_uses_the_posterior_and_sampling_the_prior(monkeypatch):
    """With the prior at -3 and the posterior at +3, both narrow, z shows its source."""
    model, seen = fresh("prob-unet", **TINY), []

    def fixed(at):
        return lambda x: Gaussian(torch.full((len(x), 2), at), torch.full((len(x), 2), -5.0))

    monkeypatch.setattr(model.prior, "forward", fixed(-3.0))
    monkeypatch.setattr(model.posterior, "forward", fixed(3.0))
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda condition, z: seen.append(z) or logits(condition, z))
    model(IMAGE, RATERS)
    assert (seen.pop() - 3).abs().max() < 0.1
    model.sample(IMAGE, 3)
    assert (seen.pop() + 3).abs().max() < 0.1


def test_sampling_encodes_each_image_once_and_skips_the_posterior():
    model = fresh("prob-unet", **TINY)
    unet, prior, posterior = (batch_sizes(part) for part in (model.contracting, model.prior, model.posterior))
    model.sample(IMAGE, 5)
    assert (unet, prior, posterior) == ([2], [2], [])


def test_default_is_the_lidc_model():
    config = create("prob-unet").config
    assert (config.channels, config.latent, config.beta) == ((32, 64, 128, 192, 192), 6, 10.0)
