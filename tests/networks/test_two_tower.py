"""The two-tower denoiser: any size, its inputs, and its mixture of components."""

from __future__ import annotations

import pytest
import torch

from stochseg.errors import UserError
from stochseg.networks import TwoTower, TwoTowerConfig, two_tower
from tests.support.networks import noisy_labels, randomized

L, C = 3, 2
SHAPE = {"tower": (8, 16, 16), "light": (8, 8), "tower_blocks": 1, "head_channels": 8}


def network(**config) -> TwoTower:
    net = TwoTower(L, C, TwoTowerConfig(**{**SHAPE, **config}))
    return randomized(net).eval().requires_grad_(False)


@pytest.mark.parametrize("patch", [1, 2, 4])
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (33, 32), (16, 24)])
def test_any_size_works(size, patch):
    net = network(patch=patch)
    image, x_t, t = noisy_labels(L, C, *size)
    logits = net(x_t, t, net.encode(image))
    assert logits.shape == (2, L, *size)
    assert bool(torch.isfinite(logits).all())
    assert logits.abs().max() > 0


def test_logits_depend_on_all_three_inputs_and_not_on_the_rest_of_the_batch():
    net = network()
    image, x_t, t = noisy_labels(L, C, 16, 16, rows=3)
    logits = net(x_t, t, net.encode(image))
    for other in (
        net((x_t + 1) % L, t, net.encode(image)),
        net(x_t, t + 100, net.encode(image)),
        net(x_t, t, net.encode(image.flip(-1))),
    ):
        assert (logits - other).abs().max() > 1e-3 * logits.std()
    alone = net(x_t[1:2], t[1:2], net.encode(image[1:2]))
    torch.testing.assert_close(logits[1:2], alone, atol=1e-4 * logits.std().item(), rtol=0)


def test_one_label_influences_the_whole_map():
    """Modes are decisions about the whole map; attention at the coarsest level spreads them."""
    net = network()
    image, x_t, t = noisy_labels(L, C, 64, 64, rows=1)
    changed = x_t.clone()
    changed[0, 0, 0] = (x_t[0, 0, 0] + 1) % L
    condition = net.encode(image)
    difference = (net(x_t, t, condition) - net(changed, t, condition)).abs().amax(1)[0]
    assert (difference > 0).float().mean() > 0.9


def test_the_output_is_the_marginal_of_the_mixture():
    net = network(components=4)
    image, x_t, t = noisy_labels(L, C, 9, 10)
    condition = net.encode(image)
    log_weight, logits = net.propose(x_t, t, condition)
    assert log_weight.shape == (2, 4)
    assert logits.shape == (2, 4, L, 9, 10)
    expected = torch.einsum("bm,bmlhw->blhw", log_weight.exp(), logits.softmax(2))
    torch.testing.assert_close(net(x_t, t, condition).softmax(1), expected, atol=1e-6, rtol=1e-4)
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3, "equal components would make this test pass always"


def test_new_components_differ():
    torch.manual_seed(0)
    net = TwoTower(L, C, TwoTowerConfig(**SHAPE, components=4))
    image, x_t, t = noisy_labels(L, C, 8, 8)
    _, logits = net.propose(x_t, t, net.encode(image))
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3


def test_an_image_tower_of_fewer_levels_than_the_label_tower_is_refused():
    with pytest.raises(UserError, match=r"tower.*light.* 2, got 1"):
        TwoTower(L, C, TwoTowerConfig(tower=(8,), light=(8, 8)))


def test_components_start_as_copies_of_a_single_head_with_other_thresholds():
    single, several = network().label_tower, network(components=3).label_tower
    assert several.copy_head(single)
    own, theirs = several.head[-1], single.head[-1]
    bias = own.bias.view(3, L, -1)
    for i, threshold in enumerate((-2.5, 0, 2.5)):
        assert torch.equal(own.weight.chunk(3)[i], theirs.weight)
        torch.testing.assert_close(bias[i, 1:] - threshold, theirs.bias.view(L, -1)[1:])
        assert torch.equal(bias[i, 0], theirs.bias.view(L, -1)[0])
    assert not several.copy_head(network(patch=4).label_tower)


def test_more_components_start_as_the_mixture_of_fewer(monkeypatch):
    """Without thresholds both are the same mixture; with them, the copies of a component lie on both sides of it."""
    torch.manual_seed(0)
    few, many = network(components=2), network(components=6)
    torch.nn.init.normal_(few.label_tower.share[1].weight)  # it starts at zero: equal weights would hide their order
    many.image_tower.load_state_dict(few.image_tower.state_dict())
    shared = {k: v for k, v in few.label_tower.state_dict().items() if not k.startswith(("head.2", "share"))}
    many.label_tower.load_state_dict(shared, strict=False)
    image, x_t, t = noisy_labels(L, C, 8, 8)

    def mixture(net):
        log_weight, logits = net.propose(x_t, t, net.encode(image))
        return log_weight.exp(), logits.softmax(2)

    monkeypatch.setattr(two_tower, "THRESHOLD_RANGE", 0.0)
    assert many.label_tower.copy_head(few.label_tower)
    (weight, p), (expected_weight, expected_p) = mixture(many), mixture(few)
    torch.testing.assert_close(weight, expected_weight.repeat_interleave(3, 1) / 3)
    torch.testing.assert_close(p, expected_p.repeat_interleave(3, 1))
    assert (expected_weight[:, 0] - expected_weight[:, 1]).abs().max() > 1e-3
    monkeypatch.undo()
    many.label_tower.copy_head(few.label_tower)
    foreground = mixture(many)[1][:, :, 1:].sum(2).flatten(2).mean(2)
    assert (foreground.view(-1, 2, 3).diff(dim=2) > 0).all()


def test_components_that_are_no_multiple_are_not_copied():
    assert not network(components=3).label_tower.copy_head(network(components=2).label_tower)
