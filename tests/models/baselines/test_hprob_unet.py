"""Hierarchical Probabilistic U-Net: choice of pixels, the multiplier of GECO, and the source of latents."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import create, load, save
from stochseg.models.baselines.hprob_unet import MULTIPLIER_RANGE, Geco, picked_pixels
from stochseg.models.baselines.latent import draws_from, given
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from tests.support.models import fresh, images, labels, perturb

IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 1, 2, 8, 8)


def hprob_unet(classes=2, **config):
    return perturb(fresh("hprob-unet", classes, **{"latents": [1, 2], **config}))


# --- pixels of the loss -----------------------------------------------------------------------------------


def random_terms(b=3, h=10, w=7):
    g = torch.Generator().manual_seed(3)
    return torch.rand(b, h, w, generator=g), torch.rand(b, h, w, generator=g) < 0.6


@pytest.mark.parametrize("share", [0.001, 0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_hardest_pixels_are_picked(share, masked):
    """Brute force: sort the pixels of each image that are not void by their loss."""
    terms, mask = random_terms()
    picked = picked_pixels(terms, mask if masked else None, share)
    for row, where, chosen in zip(terms, mask, picked, strict=True):
        allowed = [(t.item(), i) for i, t in enumerate(row.flatten()) if not masked or where.flatten()[i]]
        hardest = sorted(allowed, reverse=True)[: -int(-share * len(allowed) // 1)]
        assert set(chosen.flatten().nonzero()[:, 0].tolist()) == {i for _, i in hardest}


def test_void_pixels_are_never_picked():
    terms, mask = random_terms()
    mask[1] = False
    for u in (None, torch.rand(terms.shape)):
        picked = picked_pixels(terms, mask, 0.1, u)
        assert not picked[1].any()
        assert picked[0].any()
        assert not (picked & ~mask).any()


def test_pixels_are_drawn_without_replacement():
    """Two of three pixels with losses 1, 2, 5: probabilities of the pairs by hand, over 20,000 draws."""
    p, draws = [1 / 8, 2 / 8, 5 / 8], 20_000
    u = torch.rand(draws, 1, 3, generator=torch.Generator().manual_seed(0))
    picked = picked_pixels(torch.tensor([1.0, 2.0, 5.0]).expand(draws, 1, 3), None, 2 / 3, u)
    assert (picked.sum((1, 2)) == 2).all()
    for left_out in range(3):
        a, b = (p[i] for i in range(3) if i != left_out)
        expected = a * b / (1 - a) + a * b / (1 - b)
        frequency = (~picked[:, 0, left_out]).float().mean().item()
        assert abs(frequency - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5


# --- GECO -------------------------------------------------------------------------------------------------


def test_multiplier_rises_above_the_target_and_falls_below_it():
    geco, history = Geco(target=0.5, decay=0.9, rate=0.1), []
    for cost in [2.0] * 30 + [0.0] * 60:
        geco.update(torch.tensor(cost))
        history.append(geco.multiplier.item())
    rising = torch.tensor(history).diff() > 0
    assert rising[:29].all()
    assert not rising[-40:].any()
    turn = int(rising.int().argmin())
    assert 29 < turn < 60, "the average decides, not a single cost"
    assert min(history) > 0


def test_multiplier_follows_the_rule_of_geco():
    geco = Geco(target=0.5, decay=0.9, rate=0.1)
    costs = torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()
    average, exponent = costs[0], 0.0
    for i, cost in enumerate(costs):
        geco.update(torch.tensor(cost))
        average = cost if i == 0 else 0.9 * average + 0.1 * cost
        exponent += 0.1 * (average - 0.5)
    torch.testing.assert_close(geco.average, torch.tensor(average))
    torch.testing.assert_close(geco.multiplier, torch.tensor(exponent).exp())


@pytest.mark.parametrize("cost", [0.0, 1e6])
def test_multiplier_stays_positive_and_finite(cost):
    geco = Geco(target=1.0, decay=0.9, rate=1.0)
    for _ in range(100):
        geco.update(torch.tensor(cost))
        assert MULTIPLIER_RANGE[0] * 0.999 <= geco.multiplier <= MULTIPLIER_RANGE[1] * 1.001


def test_training_changes_the_multiplier_and_evaluation_does_not():
    """λ rises for random labels, which cannot be predicted, and falls for a target above any loss."""
    for kappa, rises in ((1e-3, True), (1e3, False)):
        model = hprob_unet(kappa=kappa)
        model.eval()(IMAGE, RATERS)
        assert model.geco.multiplier == 1
        model.train()
        for _ in range(3):
            used = model(IMAGE, RATERS)["multiplier"]
        assert (used > 1) == rises
        assert (model.geco.multiplier > used) == rises


def test_multiplier_is_saved_and_resumed(tmp_path):
    def trained(steps):
        model = hprob_unet(rate=0.5)
        for step in range(steps):
            model(IMAGE, RATERS, keys=[(step, 0), (step, 1)])
        return model

    model, kept = trained(3), ("multiplier", "average", "updates")
    assert model.geco.multiplier != 1
    again = load(save(model, tmp_path / "model"))
    assert all(torch.equal(getattr(again.geco, k), getattr(model.geco, k)) for k in kept)

    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(tmp_path / "last", model, MovingAverage(model, 0.9), optimizer, Progress(step=3))
    other = hprob_unet(rate=0.5)
    load_checkpoint(tmp_path / "last", other, MovingAverage(other, 0.9), torch.optim.Adam(other.parameters()))
    other(IMAGE, RATERS, keys=[(3, 0), (3, 1)])
    assert all(torch.equal(getattr(other.geco, k), getattr(trained(4).geco, k)) for k in kept)


# --- loss and latents -------------------------------------------------------------------------------------


def test_loss_is_the_lagrangian_of_the_hardest_pixels():
    model, x, y, keys = hprob_unet(3, pick="hardest", share=0.05).eval(), IMAGE, labels(2, 1, 3, 8, 8), [(4, 0), (4, 1)]
    model.geco.multiplier.fill_(1.7)
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    seen = torch.cat([x, F.one_hot(y[:, 0], 3).permute(0, 3, 1, 2).float()], 1)
    _, q, z = model.posterior.descend(model.posterior.encoder(seen), draws_from(noise))
    logits, p = model.logits(model.encode(x), given(z))
    hardest = F.cross_entropy(logits, y[:, 0], reduction="none").flatten(1).sort(1).values[:, -4:]
    kl = sum(a.kl(b) for a, b in zip(q, p, strict=True))
    expected = (1.7 * (hardest.sum(1) - 0.05 * 4) + kl).mean() / 4
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["cross_entropy"], hardest.mean())
    torch.testing.assert_close(out["kl"], kl.mean())


def test_latents_are_at_the_coarsest_scales():
    model = hprob_unet(channels=[4] * 6, latents=[1, 1, 2, 1])
    features = model.prior.encoder(images(1, 1, 32, 32))
    joined, gaussians, latents = model.prior.descend(features, draws_from(SeededNoise([(0,)])))
    assert [z.shape for z in latents] == [(1, 1, 1, 1), (1, 1, 2, 2), (1, 2, 4, 4), (1, 1, 8, 8)]
    assert [g.mean.shape for g in gaussians] == [z.shape for z in latents]
    assert joined.shape == (1, 5, 8, 8)


def test_small_images_are_padded_to_a_power_of_two_only():
    """Of 24×3 pixels 32×4 are computed, and a side of one pixel stays: the image alone decides the cost."""
    model = hprob_unet(channels=[4] * 8, latents=[1, 1, 1, 1])
    features = model.encode(images(1, 1, 24, 3)).tensors
    sizes = [(32, 4), (16, 2), (8, 1), (4, 1), (2, 1), (1, 1), (1, 1), (1, 1)]
    assert [tuple(f.shape[2:]) for f in features] == sizes
    logits, gaussians = model.logits(model.encode(images(1, 1, 24, 3)), draws_from(SeededNoise([(0,)])))
    assert logits.shape == (1, 2, 24, 3)
    assert [tuple(g.mean.shape[2:]) for g in gaussians] == sizes[:-5:-1]


def test_images_larger_than_the_scales_are_padded_to_multiples():
    model = hprob_unet()  # three scales
    assert model.padded(torch.zeros(1, 1, 9, 16)).shape == (1, 1, 12, 16)
    assert model.padded(torch.zeros(1, 1, 3, 1)).shape == (1, 1, 4, 1)


def test_a_finer_latent_depends_on_the_coarser_ones():
    model = hprob_unet()
    features, fine = model.prior.encoder(IMAGE[:1]), torch.zeros(1, 2, 4, 4)
    one, other = (model.prior.descend(features, given([torch.full((1, 1, 2, 2), v), fine]))[1][1] for v in (0.0, 1.0))
    assert not torch.allclose(one.mean, other.mean)


def test_training_decodes_latents_of_the_posterior_and_sampling_those_of_the_prior(monkeypatch):
    model, chosen = hprob_unet(), []
    for part in ("posterior", "prior"):
        descend = getattr(model, part).descend
        monkeypatch.setattr(
            getattr(model, part),
            "descend",
            lambda *rest, descend=descend, part=part: chosen.append((part, descend(*rest))) or chosen[-1][1],
        )
    model(IMAGE, RATERS)
    (first, (_, _, q)), (second, (_, _, p)) = chosen
    assert (first, second) == ("posterior", "prior")
    assert all(a is b for a, b in zip(q, p, strict=True))
    chosen.clear()
    model.sample(IMAGE, 2)
    assert [part for part, _ in chosen] == ["prior"]


def test_as_many_latents_as_scales_are_refused():
    with pytest.raises(UserError, match="3 latent.*4.*got 3"):
        hprob_unet(latents=[1, 1, 1])


def test_default_is_the_lidc_model():
    config = create("hprob-unet").config
    assert (config.channels, config.latents) == ((24, 48, 96, 192, 192, 192, 192, 192), (1, 1, 1, 1))
    assert (config.kappa, config.decay, config.rate, config.share) == (0.05, 0.99, 0.01, 0.02)
