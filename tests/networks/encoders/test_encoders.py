"""Image encoders: frozen, run once per image; histograms of oriented gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stochseg.errors import UserError
from stochseg.models import create
from stochseg.networks import ENCODERS, EncoderConfig, HogEncoder, ImageEncoder, make_encoder
from stochseg.types import DatasetInfo

SMALL = {"base": 8, "multipliers": (1, 1, 2, 2), "blocks": 1, "attention": (), "num_timesteps": 20}


class Counting(ImageEncoder):
    """Counts its images; has weights and running statistics that training could change."""

    channels = 4

    def __init__(self, image_channels: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(image_channels, 4, 8, stride=8), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.calls: list[int] = []

    def features(self, image: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(image))
        return self.body(image)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setitem(ENCODERS, "counting", Counting)
    torch.manual_seed(0)
    return create("ccdm", num_classes=2, image_channels=1, encoder="counting", draws=3, chunk=1, **SMALL)


IMAGE = torch.randn(2, 1, 16, 24, generator=torch.Generator().manual_seed(1))


def test_sampling_encodes_each_image_once(model):
    """5 samples × 4 evaluations of 2 images, in chunks: one call with both images."""
    out = model.sample(IMAGE, 5, evaluations=4)
    assert out.labels.shape == (2, 5, 16, 24)
    assert out.evaluations == 4
    assert model.denoiser.encoder.calls == [2]


def test_training_encodes_each_image_once_for_all_its_draws(model):
    model(IMAGE, torch.randint(2, (2, 4, 16, 24)))
    assert model.denoiser.encoder.calls == [2]


def test_training_does_not_change_the_encoder(model):
    encoder = model.denoiser.encoder
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    model.train()
    assert model.denoiser.unet.training
    assert not any(module.training for module in encoder.modules())
    model(IMAGE, torch.randint(2, (2, 4, 16, 24)))["loss"].backward()
    assert model.denoiser.unet.head[2].weight.grad is not None
    assert all(p.grad is None and not p.requires_grad for p in encoder.parameters())
    assert not encoder(IMAGE.clone().requires_grad_()).requires_grad
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_an_unknown_encoder_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'vit'.*hog"):
        make_encoder(EncoderConfig(encoder="vit"), DatasetInfo(num_classes=2, image_channels=3))


# --- histograms of oriented gradients -------------------------------------------------------------------------


def hog(image: torch.Tensor) -> torch.Tensor:
    return make_encoder(EncoderConfig(encoder="hog"), DatasetInfo(num_classes=2, image_channels=image.shape[1]))(image)


def stripes(angle: float, size: int = 64) -> torch.Tensor:
    """A wave whose gradient points along `angle` (0 is to the right, quarter turns go down), "1 1 h w"."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return torch.sin(0.4 * (x * math.cos(angle) + y * math.sin(angle)))[None, None]


@pytest.mark.parametrize("channels", [1, 3])
def test_hog_has_one_vector_per_cell_of_8(channels):
    out = hog(torch.randn(2, channels, 24, 40))
    assert out.shape == (2, HogEncoder.channels, 3, 5)
    assert bool(torch.isfinite(out).all())


def test_hog_keeps_the_type_of_the_image():
    image = torch.randn(1, 1, 16, 16, dtype=torch.float64)
    assert HogEncoder(1).double()(image).dtype == torch.float64


def test_hog_moves_by_one_cell_when_the_image_moves_by_8():
    image = torch.randn(1, 1, 48, 48, generator=torch.Generator().manual_seed(0))
    moved = image.roll((8, -8), (2, 3))
    torch.testing.assert_close(hog(moved)[..., 2:5, 1:4], hog(image)[..., 1:4, 2:5], atol=1e-5, rtol=1e-5)


def test_hog_histogram_ignores_brightness_and_the_sign_of_contrast():
    image = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    histogram = hog(image)[:, :9]
    assert histogram.norm(dim=1).min() > 0.9
    for other in (image + 5, -image):
        torch.testing.assert_close(hog(other)[:, :9], histogram, atol=1e-4, rtol=0)


def test_hog_of_a_constant_image_is_its_gray_value():
    out = hog(torch.full((1, 1, 16, 16), 0.75))
    assert bool((out[:, :9] == 0).all())
    torch.testing.assert_close(out[:, 9], torch.full((1, 2, 2), 0.75))
    assert out[:, 10].abs().max() < 1e-3


def test_hog_mean_and_deviation_are_those_of_the_cell():
    image = torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    cells = image.mean(1).unfold(2, 8, 8).movedim(2, 1).flatten(2)  # "1 cells pixels"
    out = hog(image)
    torch.testing.assert_close(out[:, 9, 0], cells.mean(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[:, 10, 0], cells.std(-1, correction=0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bin_", range(9))
def test_hog_votes_for_the_orientation_of_the_gradient(bin_):
    inner = hog(stripes(bin_ * math.pi / 9))[0, :9, 2:6, 2:6]
    assert bool((inner.argmax(0) == bin_).all())
    assert inner[bin_].min() > 0.9


def test_hog_splits_a_vote_between_two_bins():
    inner = hog(stripes(math.pi / 2))[0, :9, 2:6, 2:6]  # a quarter turn is 4.5 bins
    torch.testing.assert_close(inner[4], inner[5], atol=0.05, rtol=0)
    assert inner[[0, 1, 2, 7, 8]].max() < 0.05
