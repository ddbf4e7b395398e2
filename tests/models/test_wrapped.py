"""Networks of other libraries as stochastic segmenters."""

import pytest
import torch
from torch import nn

import stochseg
from stochseg.errors import UserError
from stochseg.models.wrapped import wrap
from stochseg.types import DatasetInfo

INFO = DatasetInfo(num_classes=3, image_channels=1)


def network(seed, *layers):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *layers).eval()


@pytest.fixture
def image():
    return torch.randn(2, 1, 8, 12, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_an_ensemble_has_one_sample_per_member_and_their_exact_mean(image):
    networks = [network(i) for i in range(3)]
    samples = wrap(networks, INFO).sample(image, 7)
    expected = torch.stack([each(image).softmax(1) for each in networks], 1)
    for i in range(7):
        assert torch.equal(samples.labels[:, i], expected[:, i % 3].argmax(1))
    assert torch.allclose(samples.mean, expected.mean(1), atol=1e-6), "members weigh the same whatever n"
    assert torch.allclose(samples.weights.sum(1), torch.ones(2))


@torch.no_grad()
def test_flips_are_undone(image):
    one = network(0)
    samples = wrap(one, INFO).sample(image, 4)
    flips = [(), (-2,), (-1,), (-2, -1)]
    expected = torch.stack([one(image.flip(f)).flip(f).softmax(1) for f in flips], 1)
    assert torch.equal(samples.labels, expected.argmax(2))
    assert torch.allclose(samples.mean, expected.mean(1), atol=1e-6)


def test_dropout_depends_on_seed_image_and_number_alone(image):
    model = wrap(network(0, nn.Dropout(0.5)), INFO, draw="dropout")
    before = torch.random.get_rng_state()
    many = model.sample(image, 6, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(model.sample(image[1:], 2, seed=1).labels, many.labels[1:, :2])
    assert not torch.equal(many.labels[:, 0], many.labels[:, 1])
    assert not any(layer.training for layer in model.modules())


def test_one_channel_is_the_foreground(image):
    info = DatasetInfo(num_classes=2, image_channels=1)
    one = nn.Conv2d(1, 1, 1)
    expected = one(image).sigmoid()[:, 0]
    assert torch.allclose(wrap(one, info).sample(image, 4).mean[:, 1], expected, atol=1e-6)
    after = nn.Sequential(one, nn.Sigmoid())
    assert torch.allclose(wrap(after, info, output="probabilities").sample(image, 4).mean[:, 1], expected, atol=1e-6)


def test_deep_supervision_dictionaries_and_padding(image):
    class Levels(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network(0)

        def forward(self, x):
            assert x.shape[-1] % 16 == 0
            return {"out": [self.net(x), self.net(x)[..., ::2, ::2]]}

    samples = wrap(Levels(), INFO, multiple=16).sample(image, 4)
    assert samples.labels.shape == (2, 4, 8, 12)


def test_volumes_and_windows():
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)
    torch.manual_seed(0)
    model = wrap([nn.Conv3d(1, 2, 1), nn.Conv3d(1, 2, 1)], info)
    volume = torch.randn(1, 1, 6, 64, 64)
    whole, tiled = model.sample(volume, 2), model.tiled((4, 40, 40), (2, 8, 8)).sample(volume, 2)
    assert torch.allclose(whole.mean, tiled.mean, atol=1e-5)


@pytest.mark.parametrize(
    ("networks", "options", "match"),
    [
        ([], {}, "expected one torch.nn.Module"),
        (network(0), {"draw": "dropout"}, "dropout layers"),
        (network(0), {"draw": "members"}, "several networks"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(networks, options, match):
    with pytest.raises(UserError, match=match):
        wrap(networks, INFO, **options)


def test_outputs_of_another_shape_name_the_remedy(image):
    with pytest.raises(UserError, match="num_classes of info"):
        wrap(nn.Conv2d(1, 5, 1), INFO).sample(image, 2)


def test_wrapped_networks_are_not_saved(tmp_path):
    with pytest.raises(UserError, match="wrapped"):
        stochseg.save(wrap(network(0), INFO), tmp_path / "model")
    assert not (tmp_path / "model").exists()
