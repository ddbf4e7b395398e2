"""PHiSeg: logits summed over levels, weights of the KL, and the source of latents."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import create
from stochseg.models.baselines.latent import draws_from, given
from stochseg.models.baselines.phiseg import cumulative
from tests.support.models import fresh, images, labels

IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 1, 2, 8, 8)


def test_cumulative_logits_are_sums_of_the_enlarged_levels():
    """Pixel by pixel: each pixel takes the value of the coarser pixel that covers it."""
    levels = [torch.randn(2, 3, 8 >> i, 12 >> i) for i in range(3)]
    sums = cumulative(levels)
    for i in range(3):
        for y in range(8):
            for x in range(12):
                expected = sum(levels[m][:, :, y >> m, x >> m] for m in range(i, 3))
                torch.testing.assert_close(sums[i][:, :, y, x], expected)


def test_resolutions_are_those_of_the_paper():
    """7 resolutions and 5 latent levels: latents at 1/4 .. 1/64, logits at 1 .. 1/16."""
    model = fresh("phiseg", channels=[4] * 7, levels=5)
    image = images(1, 1, 64, 64)
    gaussians, latents = model.prior.descend(model.prior.encode(image), draws_from(SeededNoise([(0,)])))
    assert [z.shape for z in latents] == [(1, 2, s, s) for s in (16, 8, 4, 2, 1)]
    assert [g.mean.shape for g in gaussians] == [z.shape for z in latents]
    assert [s.shape for s in model.likelihood(*latents)] == [(1, 2, s, s) for s in (64, 32, 16, 8, 4)]


def test_loss_is_a_sum_over_levels_with_kl_weights_of_four_to_the_level():
    model, x, y, keys = fresh("phiseg", 3, levels=3), IMAGE, labels(2, 1, 3, 8, 8), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    seen = torch.cat([x, F.one_hot(y[:, 0], 3).permute(0, 3, 1, 2).float()], 1)
    q, z = model.posterior.descend(model.posterior.encode(seen), draws_from(noise))
    p, _ = model.prior.descend(model.prior.encode(x), given(z[::-1]))
    s = model.likelihood(*z)
    up = [F.interpolate(level, scale_factor=2.0**i) for i, level in enumerate(s)]
    sums = [up[0] + up[1] + up[2], up[1] + up[2], up[2]]
    expected = sum(F.cross_entropy(logits, y[:, 0]) for logits in sums)
    expected = expected + sum(w * a.kl(b).mean() for w, a, b in zip((1, 4, 16), q, p, strict=True)) / 64
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["kl"], sum(a.kl(b).mean() for a, b in zip(q, p, strict=True)))


def test_training_decodes_latents_of_the_posterior_and_sampling_those_of_the_prior(monkeypatch):
    model, chosen, decoded = fresh("phiseg"), [], []
    for part in ("posterior", "prior"):
        descend = getattr(model, part).descend
        monkeypatch.setattr(
            getattr(model, part),
            "descend",
            lambda *rest, descend=descend, part=part: chosen.append((part, descend(*rest))) or chosen[-1][1],
        )
    likelihood = model.likelihood.forward
    monkeypatch.setattr(model.likelihood, "forward", lambda *z: decoded.append(z) or likelihood(*z))

    model(IMAGE, RATERS)
    (first, (_, q)), (second, (_, p)) = chosen
    assert (first, second) == ("posterior", "prior")
    assert all(a is b is c for a, b, c in zip(q, p, decoded[0], strict=True))

    chosen.clear()
    model.sample(IMAGE, 2)
    assert [part for part, _ in chosen] == ["prior"]
    assert all(a is b for a, b in zip(chosen[0][1][1], decoded[1], strict=True))


def test_a_finer_level_depends_on_the_coarser_latents():
    model = fresh("phiseg")
    features = model.prior.encode(IMAGE[:1])
    coarse = torch.zeros(1, 2, 2, 2)
    finest = [model.prior.descend(features, given([z, torch.zeros(1, 2, 4, 4)]))[0][0] for z in (coarse, coarse + 1)]
    assert not torch.allclose(finest[0].mean, finest[1].mean)


def test_more_levels_than_resolutions_are_refused():
    with pytest.raises(UserError, match="4 latent levels.*got 3"):
        fresh("phiseg", levels=4)


def test_default_is_the_lidc_model():
    config = create("phiseg").config
    assert (config.channels, config.levels, config.latent) == ((32, 64, 128, 192, 192, 192, 192), 5, 2)


def test_joins_have_the_released_channels():
    """Convolutions by name: (channels in, channels out), read off the released networks, levels from fine to coarse."""
    model = create("phiseg")

    def convs(module):
        return [(m.in_channels, m.out_channels) for m in module.modules() if isinstance(m, torch.nn.Conv2d)]

    prior, likelihood = model.prior, model.likelihood
    for level, (features, joined) in enumerate([(128, 32), (192, 64), (192, 128), (192, 192)]):
        assert convs(prior.enlarged[level]) == [(2, 64), (64, 64)]
        assert convs(prior.joined[level]) == [(features + 64, joined), (joined, joined)]
        assert convs(prior.heads[level]) == [(joined, 4)]
    carried = [128, 192, 192, 192, 192]
    for level, width in enumerate([32, 64, 128, 192, 192]):
        assert convs(likelihood.first[level]) == [(2, width), (width, width)]
        assert convs(likelihood.lifts[level]) == [(width, width)] * 2
        assert convs(likelihood.heads[level]) == [(carried[level], 2)]
    for level, width in enumerate([32, 64, 128, 192]):
        assert convs(likelihood.below[level]) == [(carried[level + 1], width)]
        assert convs(likelihood.joined[level]) == [(2 * width, carried[level]), (carried[level], carried[level])]
