"""Tiling: windows cover the image, their predictions are blended, and the layout hardly matters."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.networks import Condition, Denoiser, Tiled, Tiling, blended
from stochseg.networks.tiles import ALIGN
from stochseg.types import Batch
from tests.support.models import fresh, lively


class Local(Denoiser):
    """Three convolutions: the logits of a pixel depend only on the 3 pixels around it."""

    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.classes = classes
        self.net = nn.Sequential(
            nn.Conv2d(classes + 1, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, classes, 3, padding=1),
        ).requires_grad_(False)

    def encode(self, image):
        return Condition((image,), tuple(image.shape[-2:]))

    def propose(self, x_t, t, condition):
        onehot = F.one_hot(x_t, self.classes).movedim(-1, 1).float()
        return torch.zeros(len(x_t), 1), self.net(torch.cat([onehot, condition.tensors[0]], 1))[:, None]


def image(h, w, b=1):
    return torch.rand(b, 1, h, w, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize(("height", "width"), [(200, 300), (64, 65), (95, 96), (97, 128), (40, 1000), (1, 129)])
@pytest.mark.parametrize(("tile", "overlap"), [(64, 8), (64, 32), (96, 20)])
def test_windows_cover_the_image_and_their_weights_sum_to_one(height, width, tile, overlap):
    layout = Tiling.of(tile, overlap, 2).windows((height, width))
    total = torch.zeros(height, width)
    for window in layout:
        window(total).add_(window.weight)
        assert (window.weight >= 0).all()
        for part, length in zip(window.parts, (height, width), strict=True):
            assert part.start % ALIGN == 0
            assert 0 <= part.start < part.stop <= length
            assert part.stop - part.start < tile + ALIGN
            assert part.stop - part.start >= min(tile, length)
    torch.testing.assert_close(total, torch.ones(height, width))
    edges = sorted({(w.parts[1].start, w.parts[1].stop) for w in layout})
    assert all(stop - start >= overlap for (_, stop), (start, _) in pairwise(edges))


def test_a_window_has_no_weight_at_its_cut_edge():
    first = Tiling.of(96, 32, 2).windows((64, 160))[0]
    assert (first.weight[:, :64] == 1).all(), "the only window there"
    assert (first.weight[:, -8:] == 0).all(), "the margin is a quarter of the overlap"
    assert (first.weight.diff(dim=1) <= 1e-6).all()


@pytest.mark.parametrize(("tile", "overlap"), [(64, 32), (96, 20), (128, 96)])
def test_a_local_network_predicts_the_same_in_any_tiling(tile, overlap):
    """Its reach is below the margin of a quarter of the overlap, so that cut edges have no influence."""
    local, x = Local(), image(150, 170, 2)
    x_t, t = torch.randint(3, (2, 150, 170), generator=torch.Generator().manual_seed(2)), torch.tensor([1, 1])
    whole = local(x_t, t, local.encode(x)).log_softmax(1)
    tiled = Tiled(local, Tiling.of(tile, overlap, 2))
    torch.testing.assert_close(tiled(x_t, t, tiled.encode(x)), whole, rtol=0, atol=1e-5)
    rows = torch.tensor([1, 0, 1])
    again = tiled(x_t[rows], t[:1].expand(3), tiled.encode(x)[rows])
    torch.testing.assert_close(again, whole[rows], rtol=0, atol=1e-5)
    rows_of_rows = tiled.encode(x)[rows][torch.tensor([2])]
    torch.testing.assert_close(tiled(x_t[1:], t[1:], rows_of_rows), whole[1:], rtol=0, atol=1e-5)


def test_an_image_of_one_window_gives_the_same_bits():
    local, x = Local(), image(64, 50)
    x_t, t = torch.zeros(1, 64, 50, dtype=torch.int64), torch.tensor([1])
    tiled = Tiled(local, Tiling.of(64, 16, 2))
    assert torch.equal(tiled(x_t, t, tiled.encode(x)), local(x_t, t, local.encode(x)))


def test_blended_logits_of_a_plain_network():
    net = nn.Conv2d(1, 3, 5, padding=2).requires_grad_(False)
    x = image(130, 100)
    torch.testing.assert_close(blended(net, x, Tiling.of(64, 24, 2)).softmax(1), net(x).softmax(1), rtol=0, atol=1e-5)
    assert torch.equal(blended(net, x, Tiling.of(130, 24, 2)), net(x))


@pytest.mark.parametrize(("tile", "overlap"), [(64, 4), (64, 40), (0, 8)])
def test_impossible_tilings_are_refused(tile, overlap):
    with pytest.raises(UserError, match=f"tile {tile} and overlap {overlap}"):
        Tiling.of(tile, overlap, 2)


# --- models -----------------------------------------------------------------------------------------------


DIFFUSION = {"num_timesteps": 20, "steps": 4}


@pytest.mark.parametrize("config", [{}, {"sampler": "ancestral", "noise": "latin"}])
def test_the_noise_of_a_diffusion_does_not_depend_on_the_tiling(config):
    """With a local network as the denoiser, samples equal those of the whole image."""
    model, x = lively("ccdm-fast", **DIFFUSION, **config), image(140, 150)
    model.denoiser = Local(2)
    whole = model.sample(x, 2)
    for tile, overlap in ((64, 32), (96, 24)):
        tiled = model.tiled(tile, overlap).sample(x, 2)
        assert (tiled.labels == whole.labels).float().mean() >= 0.9999
        torch.testing.assert_close(tiled.mean, whole.mean, rtol=0, atol=0.01)


@pytest.fixture(scope="module")
def trained():
    """A tiny model after a few seconds of training on phantoms."""
    model, data = fresh("ccdm-fast", **DIFFUSION), Phantoms("train", size=32, count=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(120):
        batch = Batch.collate([data[(8 * step + i) % 64] for i in range(8)])
        optimizer.zero_grad()
        model(batch.image, batch.raters, keys=[(step, i) for i in range(8)])["loss"].backward()
        optimizer.step()
    return model.eval()


def test_two_tilings_of_a_trained_network_agree(trained):
    """Not exactly: its normalization and attention see a whole window."""
    mosaic = torch.cat(
        [torch.cat([Phantoms("test", size=32)[4 * i + j].image for j in range(4)], 2) for i in range(4)], 1
    )
    one, other = (trained.tiled(*layout).sample(mosaic[None], 4).labels for layout in ((64, 24), (96, 64)))
    assert (one == 1).float().mean() > 0.01, "an empty prediction would agree always"
    assert (one == other).float().mean() >= 0.985


def test_two_tilings_of_a_deterministic_model_agree():
    model, x = lively("unet-ce"), image(100, 64)
    one, other = (model.tiled(*layout).sample(x, 1) for layout in ((64, 24), (64, 32)))
    assert one.labels.unique().numel() > 1
    assert (one.labels == other.labels).float().mean() >= 0.98
    torch.testing.assert_close(one.mean.sum(1), torch.ones(1, 100, 64), rtol=0, atol=1e-5)


def test_a_sample_of_a_mixture_uses_one_component_in_all_windows():
    model, x = lively("ccdm-fast", num_timesteps=20, components=2, steps=1), image(64, 160)

    def propose(x_t, t, condition):
        logits = 50 * torch.eye(2)[None, :, :, None, None].expand(len(x_t), 2, 2, *x_t.shape[1:])
        return torch.tensor([[0.5, 0.5]]).log().expand(len(x_t), 2), logits

    model.denoiser.propose = propose
    labels = model.tiled(64, 16).sample(x, 12).labels
    assert (labels == labels[..., :1, :1]).all()
    assert labels.unique().numel() == 2


def test_tiling_does_not_change_the_model():
    model = lively("ccdm-fast")
    tiled = model.tiled(64, 16)
    assert type(model.denoiser).__name__ == "TwoTower"
    assert type(tiled.denoiser) is Tiled
    assert {p.data_ptr() for p in model.parameters()} == {p.data_ptr() for p in tiled.parameters()}


def test_a_model_with_a_focus_is_not_tiled():
    with pytest.raises(UserError, match="with focus 8 cannot be tiled"):
        lively("ccdm-fast", focus=8).tiled(64, 16)
