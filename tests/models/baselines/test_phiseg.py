"""PHiSeg: logits that add up over levels, KL weights, and where its latents come from."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import create
from stochseg.models.baselines.latent import draws_from, given
from stochseg.models.baselines.phiseg import cumulative
from tests.support.readings import learn

TINY = {"channels": [8, 8, 8], "convs": 1, "levels": 2}


def phiseg(classes=2, **config):
    torch.manual_seed(0)
    return create("phiseg", classes, 1, **{**TINY, **config})


def image(b=2, size=8):
    return torch.rand(b, 1, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def labels(b=2, k=1, classes=2, size=8):
    return torch.randint(classes, (b, k, size, size), generator=torch.Generator().manual_seed(2))


def test_cumulative_logits_are_sums_of_the_enlarged_levels():
    """Pixel by pixel: a pixel of the image lies in the pixel of a coarser level that covers it."""
    levels = [torch.randn(2, 3, 8 >> i, 12 >> i) for i in range(3)]
    sums = cumulative(levels)
    for i in range(3):
        for y in range(8):
            for x in range(12):
                expected = sum(levels[m][:, :, y >> m, x >> m] for m in range(i, 3))
                torch.testing.assert_close(sums[i][:, :, y, x], expected)


def test_levels_have_the_resolutions_of_the_paper():
    """7 resolutions and 5 latent levels: latents at 1/4 .. 1/64, logits at 1 .. 1/16."""
    model = phiseg(channels=[4] * 7, levels=5)
    gaussians, latents = model.prior.descend(model.prior.encode(image(1, 64)), draws_from(SeededNoise([(0,)])))
    assert [z.shape for z in latents] == [(1, 2, s, s) for s in (16, 8, 4, 2, 1)]
    assert [g.mean.shape for g in gaussians] == [z.shape for z in latents]
    assert [s.shape for s in model.likelihood(latents)] == [(1, 2, s, s) for s in (64, 32, 16, 8, 4)]


def test_loss_is_the_sum_over_levels_with_kl_weights_of_four_to_the_level():
    model, x, y, keys = phiseg(3, levels=3), image(), labels(classes=3), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    seen = torch.cat([x, F.one_hot(y[:, 0], 3).permute(0, 3, 1, 2).float()], 1)
    q, z = model.posterior.descend(model.posterior.encode(seen), draws_from(noise))
    p, _ = model.prior.descend(model.prior.encode(x), given(z[::-1]))
    s = model.likelihood(z)
    up = [F.interpolate(level, scale_factor=2.0**i) for i, level in enumerate(s)]
    sums = [up[0] + up[1] + up[2], up[1] + up[2], up[2]]
    expected = sum(F.cross_entropy(logits, y[:, 0]) for logits in sums)
    expected = expected + sum(w * a.kl(b).mean() for w, a, b in zip((1, 4, 16), q, p, strict=True)) / 64
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["kl"], sum(a.kl(b).mean() for a, b in zip(q, p, strict=True)))


def test_training_decodes_latents_of_the_posterior_and_the_prior_sees_them(monkeypatch):
    model, chosen, decoded = phiseg(), [], []
    for part in ("posterior", "prior"):
        descend = getattr(model, part).descend
        monkeypatch.setattr(
            getattr(model, part),
            "descend",
            lambda *rest, descend=descend, part=part: chosen.append((part, descend(*rest))) or chosen[-1][1],
        )
    likelihood = model.likelihood.forward
    monkeypatch.setattr(model.likelihood, "forward", lambda z: decoded.append(z) or likelihood(z))

    model(image(), labels())
    (first, (_, q)), (second, (_, p)) = chosen
    assert (first, second) == ("posterior", "prior")
    assert all(a is b is c for a, b, c in zip(q, p, decoded[0], strict=True))

    chosen.clear()
    model.sample(image(), 2)
    assert [part for part, _ in chosen] == ["prior"]
    assert all(a is b for a, b in zip(chosen[0][1][1], decoded[1], strict=True))


def test_a_finer_level_depends_on_the_coarser_latents():
    model = phiseg()
    features = model.prior.encode(image(1))
    coarse = torch.zeros(1, 2, 2, 2)
    finest = [model.prior.descend(features, given([z, torch.zeros(1, 2, 4, 4)]))[0][0] for z in (coarse, coarse + 1)]
    assert not torch.allclose(finest[0].mean, finest[1].mean)


def test_more_levels_than_resolutions_are_refused():
    with pytest.raises(UserError, match="4 latent levels need as many resolutions, got 3 channels"):
        phiseg(levels=4)


def test_default_is_the_lidc_model():
    config = create("phiseg", 2, 1).config
    assert (config.channels, config.levels, config.latent) == ((32, 64, 128, 192, 192, 192, 192), 5, 2)


def test_both_readings_are_drawn_with_their_frequencies():
    one, zero = learn(phiseg(channels=[16, 16, 16]), steps=200, lr=3e-3, batch=16, size=4)
    assert 0.55 < one < 0.85
    assert 0.15 < zero < 0.45
