"""CAR: each player's loss reaches that player only, the mean of samples follows F, and two readings are kept apart."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise, draw_normal
from stochseg.models import create
from stochseg.models.baselines.car import PatchDiscriminator
from stochseg.models.raters import pick_raters
from tests.support.readings import two_readings

TINY = {"base": 8, "multipliers": [1], "blocks": 1, "attention": [], "patch_width": 8, "patch_levels": 2}
PLAYERS = ("calibrated", "refiner", "discriminator")


def car(classes=2, channels=1, **config):
    torch.manual_seed(0)
    model = create("car", classes, channels, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def gradients(model, image, labels):
    """The loss's gradient a player, as lists of tensors."""
    model.zero_grad()
    model(image, labels, keys=[(1, i) for i in range(len(image))])["loss"].backward()
    return {name: [p.grad.clone() for p in getattr(model, name).parameters()] for name in PLAYERS}


def same(a, b):
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-7) for x, y in zip(a, b, strict=True))


IMAGE = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(2, (2, 2, 8, 8), generator=torch.Generator().manual_seed(1))


def test_weights_of_the_refiner_do_not_touch_the_other_players():
    """Ten times the refiner's terms are ten times its gradient, and nobody else's changes: they are not in it."""
    one, ten = (gradients(car(adversarial=w, calibration=w), IMAGE, LABELS) for w in (1.0, 10.0))
    assert same([10 * g for g in one["refiner"]], ten["refiner"])
    assert same(one["calibrated"], ten["calibrated"])
    assert same(one["discriminator"], ten["discriminator"])
    assert all(any(g.abs().max() > 0 for g in grads) for grads in one.values())


def test_a_refiner_of_weight_zero_gets_nothing():
    """What is left, F's and D's terms, must not reach G."""
    left = gradients(car(adversarial=0.0, calibration=0.0), IMAGE, LABELS)
    assert all(g.abs().max() == 0 for g in left["refiner"])


def test_each_player_has_the_gradient_of_its_own_loss():
    """The three losses written out one by one, each differentiated by its player alone."""
    model = car(latent=3, samples=2)
    got = gradients(model, IMAGE, LABELS)
    u = SeededNoise([(1, 0), (1, 1)]).uniform((2, 1 + 2 * 3))
    y = LABELS[[0, 1], pick_raters(u[:, 0], torch.tensor([2, 2]))[:, 0]]
    onehot = F.one_hot(y, 2).permute(0, 3, 1, 2).float()
    logits = model.calibrated(IMAGE)
    f = logits.softmax(1)
    encoded = model.refiner.encode(IMAGE, f)
    z = draw_normal(u[:, 1:]).view(2, 2, 3)
    samples = [model.refiner(encoded, torch.arange(2), z[:, i]).softmax(1) for i in range(2)]
    mean = (samples[0] + samples[1]) / 2
    real = model.discriminator(IMAGE, onehot).sigmoid()
    fakes = [model.discriminator(IMAGE, s).sigmoid() for s in samples]
    losses = {
        "calibrated": -(onehot * f.log()).sum(1).mean(),
        "refiner": 10 * sum(-d.log().mean() for d in fakes) / 2 + 5 * (mean * (mean / f).log()).sum(1).mean(),
        "discriminator": -real.log().mean() - sum((1 - d).log().mean() for d in fakes) / 2,
    }
    for name, loss in losses.items():
        own = torch.autograd.grad(loss, list(getattr(model, name).parameters()), retain_graph=True)
        assert same(own, got[name]), name


def test_learning_rates_and_betas_of_the_players():
    model = car()
    groups = model.parameter_groups()
    rates = {id(p): g["lr_factor"] * 2e-4 for g in groups for p in g["params"]}
    assert len(rates) == len(list(model.parameters())) == sum(len(g["params"]) for g in groups)
    for name, rate in zip(PLAYERS, (5e-4, 2e-4, 1e-5), strict=True):
        assert all(rates[id(p)] == pytest.approx(rate) for p in getattr(model, name).parameters())
    assert all(g["betas"] == (0.5, 0.99) for g in groups)
    torch.optim.Adam(groups, lr=2e-4)


def test_the_discriminator_is_part_of_what_is_saved():
    assert any(key.startswith("discriminator.") for key in car().state_dict())


def test_the_code_enters_at_the_three_finest_levels_of_the_decoder():
    model = create("car", 2, 1, **{**TINY, "multipliers": [1, 1, 2, 2, 3]})
    assert [m.out_features for m in model.refiner.modulations] == [16, 16, 32]


def test_the_code_counts_at_each_of_its_levels():
    """With as many groups as channels a normalization right behind it would take scale and shift away."""
    model = create("car", 2, 1, base=32, multipliers=[1, 1, 1], blocks=1, attention=[])
    with torch.no_grad():
        torch.nn.init.normal_(model.refiner.unet.head[-1].weight)
    image, p = torch.rand(1, 1, 16, 16), torch.rand(1, 2, 16, 16)
    for modulation in model.refiner.modulations:
        torch.nn.init.zeros_(modulation.weight)
        torch.nn.init.zeros_(modulation.bias)

    def logits():
        with torch.no_grad():
            return model.refiner(model.refiner.encode(image, p), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 8))

    plain = logits()
    for modulation in model.refiner.modulations:
        torch.nn.init.uniform_(modulation.bias, 1, 4)
        assert (logits() - plain).abs().max() > 0.1
        torch.nn.init.zeros_(modulation.bias)


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (17, 9)])
def test_discriminator_takes_any_size(size):
    out = PatchDiscriminator(3, 4, 3)(torch.rand(2, 1, *size), torch.rand(2, 2, *size))
    assert out.shape == (2, 1, -(-size[0] // 8), -(-size[1] // 8))


def test_mean_of_samples_is_pulled_to_the_calibration_network():
    """Without adversary: F says 0.2 everywhere and does not learn; the mean of G's samples gets there."""
    model = create("car", 2, 1, **{**TINY, "adversarial": 0.0})
    with torch.no_grad():
        model.calibrated.head[-1].bias.copy_(torch.tensor([0.8, 0.2]).log())
        model.refiner.unet.head[-1].bias.copy_(torch.tensor([0.1, 0.9]).log())
    optimizer = torch.optim.Adam(model.refiner.parameters(), lr=1e-2)
    assert model.sample(IMAGE, 4).mean[:, 1].mean() > 0.8
    for step in range(60):
        optimizer.zero_grad()
        model(IMAGE, LABELS, keys=[(step, 0), (step, 1)])["loss"].backward()
        optimizer.step()
    mean = model.sample(IMAGE, 30).mean[:, 1]
    assert mean.mean().item() == pytest.approx(0.2, abs=0.05)
    assert (mean - 0.2).abs().mean() < 0.08


def test_both_readings_are_drawn_with_their_frequencies():
    """In so short a game the published weights leave one reading only. Here calibration outweighs the adversary, and it
    holds the mean of 16 samples to F, which is closer to the mean of all than that of 5."""
    torch.manual_seed(0)
    weights = {"adversarial": 1.0, "calibration": 20.0, "discriminator_lr": 1.0}
    model = create("car", 2, 1, **{**TINY, **weights, "patch_levels": 1, "latent": 2, "samples": 16})
    image, labels = two_readings(size=4)
    image, labels = image.expand(2, -1, -1, -1), labels.expand(2, -1, -1, -1)
    optimizer = torch.optim.Adam([{**g, "lr": 5e-3 * g["lr_factor"]} for g in model.parameter_groups()])
    for step in range(200):
        optimizer.zero_grad()
        model(image, labels, keys=[(1, step, i) for i in range(2)])["loss"].backward()
        optimizer.step()
    share = model.sample(image[:1], 400).labels[0].float().mean((1, 2))
    assert 0.5 < (share > 0.95).float().mean() < 0.85
    assert 0.15 < (share < 0.05).float().mean() < 0.45
