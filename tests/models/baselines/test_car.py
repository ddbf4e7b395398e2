"""CAR: each loss reaches its own network only, and the mean of samples follows the calibration network."""

import pytest
import torch
import torch.nn.functional as F

from stochseg.core import SeededNoise, draw_normal
from stochseg.models import create
from stochseg.models.baselines.car import PatchDiscriminator, Turn, squared_gradient
from stochseg.models.raters import pick_raters
from tests.support.models import fresh, images, labels, perturb

TINY = {"multipliers": [1], "attention": [], "patch_levels": 2, "latent": 8}
NETWORKS = ("calibrated", "refiner", "discriminator")
IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 2, 2, 8, 8)


def car(**config):
    return perturb(fresh("car", **{**TINY, **config}))


def gradients(model):
    """Gradients of the loss, as a list of tensors per network."""
    model(IMAGE, RATERS, keys=[(1, 0), (1, 1)])["loss"].backward()
    return {name: [p.grad for p in getattr(model, name).parameters()] for name in NETWORKS}


def same(a, b):
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-7) for x, y in zip(a, b, strict=True))


def test_terms_of_the_refiner_reach_no_other_network():
    """Ten times the terms of the refiner give ten times its gradient and change no other gradient."""
    one, ten = (gradients(car(adversarial=w, calibration=w)) for w in (1.0, 10.0))
    assert same([10 * g for g in one["refiner"]], ten["refiner"])
    assert same(one["calibrated"], ten["calibrated"])
    assert same(one["discriminator"], ten["discriminator"])
    assert all(any(g.abs().max() > 0 for g in grads) for grads in one.values())


def test_terms_of_the_other_networks_do_not_reach_the_refiner():
    others = gradients(car(adversarial=0.0, calibration=0.0))
    assert all(g.abs().max() == 0 for g in others["refiner"])


def test_each_network_has_the_gradient_of_its_own_loss():
    """The three losses written out, each differentiated with respect to its own network."""
    model = car(latent=3, samples=2, multipliers=[1] * 5)  # images of 8×8 are padded to 16×16
    pad = torch.nn.ReplicationPad2d((0, 8, 0, 8))
    got = gradients(model)
    u = SeededNoise([(1, 0), (1, 1)]).uniform((2, 1 + 2 * 3))
    y = RATERS[[0, 1], pick_raters(u[:, 0], torch.tensor([2, 2]))[:, 0]]
    onehot = F.one_hot(y, 2).permute(0, 3, 1, 2).float()
    logits = model.calibrated(pad(IMAGE))
    f = logits.softmax(1)
    encoded = model.refiner.encode(pad(IMAGE), f)
    f = f[..., :8, :8]
    z = draw_normal(u[:, 1:]).view(2, 2, 3)
    samples = [model.refiner(encoded, torch.arange(2), z[:, i])[..., :8, :8].softmax(1) for i in range(2)]
    mean = (samples[0] + samples[1]) / 2
    seen = torch.cat([IMAGE, onehot], 1).requires_grad_()
    judged = model.discriminator(seen[:, :1], seen[:, 1:])
    (slope,) = torch.autograd.grad(judged.flatten(1).mean(1).sum(), seen, create_graph=True)
    real, fake = judged.sigmoid(), model.discriminator(IMAGE, samples[0]).sigmoid()
    losses = {
        "calibrated": -(onehot * f.log()).sum(1).mean(),
        "refiner": -10 * fake.log().mean() + 5 * (mean * (mean / f).log()).sum(1).mean(),
        "discriminator": -real.log().mean() - (1 - fake).log().mean() + 10 * (slope**2).sum((1, 2, 3)).mean(),
    }
    for name, loss in losses.items():
        own = torch.autograd.grad(loss, list(getattr(model, name).parameters()), retain_graph=True)
        assert same(own, got[name]), name


def test_each_network_has_its_learning_rate_and_betas():
    model = car()
    groups = model.parameter_groups()
    rates = {id(p): g["lr_factor"] * 2e-4 for g in groups for p in g["params"]}
    assert len(rates) == len(list(model.parameters())) == sum(len(g["params"]) for g in groups)
    for name, rate in zip(NETWORKS, (5e-4, 2e-4, 1e-5), strict=True):
        assert all(rates[id(p)] == pytest.approx(rate) for p in getattr(model, name).parameters())
    assert all(g["betas"] == (0.5, 0.99) for g in groups)
    torch.optim.Adam(groups, lr=2e-4)


def test_discriminator_is_saved():
    assert any(key.startswith("discriminator.") for key in car().state_dict())


def test_code_enters_at_the_three_finest_levels_of_the_decoder():
    model = car(refiner="unet", multipliers=[1, 1, 2, 2, 3])
    assert [m.out_features for m in model.refiner.modulations] == [16, 16, 32]


def test_code_has_an_effect_at_each_of_its_levels():
    """A normalization right after it, with as many groups as channels, would undo scale and shift."""
    model = fresh("car", refiner="unet", base=32, multipliers=[1, 1, 1], attention=[], latent=8)
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


def test_code_has_an_effect_at_each_level_of_the_light_refiner():
    model = fresh("car", refiner_base=32)
    encoded = model.refiner.encode(torch.rand(1, 1, 16, 16), torch.rand(1, 2, 16, 16))
    layers = [injection.modulation for injection in model.refiner.decoder.injections]
    for layer in layers:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)

    def logits():
        with torch.no_grad():
            return model.refiner(encoded, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4))

    plain = logits()
    for layer in layers:
        torch.nn.init.uniform_(layer.bias, 1, 4)
        assert (logits() - plain).abs().max() > 0.1
        torch.nn.init.zeros_(layer.bias)


def test_the_light_refiner_has_the_published_size():
    size = sum(p.numel() for p in create("car").refiner.parameters())
    assert 0.6e6 < size < 0.65e6


def test_networks_learn_in_turns():
    """F alone, then G in every step, and D and F in the first steps of each round."""
    model = car(calibration_steps=2, turns=[1, 2], accuracy_cap=2.0)
    first, both, pause = Turn(refines=False, discriminates=False), Turn(), Turn(calibrates=False, discriminates=False)
    for expected in (first, first, both, pause, pause, both, pause):
        model.zero_grad(set_to_none=True)
        model(IMAGE, RATERS)["loss"].backward()
        learned = [next(getattr(model, name).parameters()).grad is not None for name in NETWORKS]
        assert learned == [expected.calibrates, expected.refines, expected.discriminates]
    assert model.updates == 7
    model.eval()
    assert model.turn() == Turn()
    assert model.updates == 7


@pytest.mark.parametrize(("cap", "learns"), [(1e-9, False), (1.1, True)])
def test_discriminator_that_is_right_does_not_learn(cap, learns):
    model = car(accuracy_cap=cap)
    out = model(IMAGE, RATERS)
    out["loss"].backward()
    assert 0 < out["accuracy"] < 1.1
    assert all((p.grad is not None) == learns for p in model.discriminator.parameters())
    assert all(p.grad is not None for p in model.refiner.parameters())


def test_squared_gradient_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(2, c, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True) for c in (1, 2)]
    kernel = torch.rand(1, 3, 3, 3, generator=generator, dtype=torch.float64)

    def discriminator(image, maps):
        return F.conv2d(torch.cat([image, maps], 1), kernel).sin()

    got = squared_gradient(discriminator(*inputs), inputs)
    expected, e = torch.zeros(2, dtype=torch.float64), 1e-6
    with torch.no_grad():
        for x in inputs:
            for place in range(x[0].numel()):
                x.flatten(1)[:, place] += e
                up = discriminator(*inputs).mean((1, 2, 3))
                x.flatten(1)[:, place] -= 2 * e
                down = discriminator(*inputs).mean((1, 2, 3))
                x.flatten(1)[:, place] += e
                expected += ((up - down) / (2 * e)) ** 2
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (17, 9)])
def test_discriminator_takes_any_size(size):
    out = PatchDiscriminator(3, 4, 3)(torch.rand(2, 1, *size), torch.rand(2, 2, *size))
    assert out.shape == (2, 1, -(-size[0] // 8), -(-size[1] // 8))


def test_calibration_loss_pulls_the_mean_of_samples_to_the_calibration_network():
    """Without the adversary: F predicts 0.2 everywhere and does not learn; the mean of G's samples gets there."""
    model = fresh("car", **TINY, adversarial=0.0)
    with torch.no_grad():
        model.calibrated.head[-1].bias.copy_(torch.tensor([0.8, 0.2]).log())
        model.refiner.decoder.injections[-1].conv.weight.zero_()
        model.refiner.decoder.injections[-1].conv.bias.copy_(torch.tensor([0.1, 0.9]).log())
    optimizer = torch.optim.Adam(model.refiner.parameters(), lr=1e-2)
    assert model.sample(IMAGE, 4).mean[:, 1].mean() > 0.8
    for step in range(60):
        optimizer.zero_grad()
        model(IMAGE, RATERS, keys=[(step, 0), (step, 1)])["loss"].backward()
        optimizer.step()
    mean = model.sample(IMAGE, 30).mean[:, 1]
    assert mean.mean().item() == pytest.approx(0.2, abs=0.05)
    assert (mean - 0.2).abs().mean() < 0.08
