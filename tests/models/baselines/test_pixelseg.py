"""PixelSeg: causality of its network, normalized likelihoods, and samplers against a slow reference."""

from itertools import product

import pytest
import torch
from scipy import ndimage, stats

from stochseg.core import SeededNoise, draw_categorical
from stochseg.errors import UserError
from stochseg.models.baselines.pixelseg import by_raster, by_sweeps, smoothed
from stochseg.networks.pixel_cnn import PixelCNN
from stochseg.networks.shapes import one_hot
from tests.support.models import batch_sizes, fresh, images, perturb

TINY = {"base": 4, "multipliers": [1], "attention": [], "features": 4, "pixel_width": 6, "pixel_kernel": 3}


def pixelseg(classes=2, **config):
    return perturb(fresh("pixelseg", classes, **{**TINY, **config}), 0.5).eval()


def likelihood(model, image, half):
    """p(half | image), "b" float64, of maps "b h/2 w/2" at every second pixel."""
    with torch.no_grad():
        logits = model.half_logits(model.encode(image)[1], one_hot(half, model.num_classes)) - model.log_weights
    return logits.log_softmax(1).gather(1, half[:, None]).sum((1, 2, 3)).double().exp()


@pytest.mark.parametrize("kernel", [3, 7])
def test_pixel_depends_on_earlier_pixels_only(kernel):
    torch.manual_seed(0)
    net = PixelCNN(2, 6, 3, kernel).double()
    x = torch.rand(1, 2, 5, 6, dtype=torch.float64)
    before = net(x)
    seen = 0
    for source in range(30):
        changed = x.clone()
        changed[0, :, source // 6, source % 6] += 1
        moved = (net(changed) - before).abs().amax((0, 1)).flatten() > 0
        assert not moved[: source + 1].any(), "a pixel depends on itself or on a later one"
        seen += int(moved.sum())
    assert seen > 100, "hardly any pixel depends on an earlier one, so that the test is void"


def test_pixel_depends_on_all_its_earlier_neighbors():
    """Left, above left, above and above right of the pixel (2, 2)."""
    torch.manual_seed(0)
    net = PixelCNN(1, 8, 3, 3)
    x = torch.rand(1, 1, 5, 5)
    for row, column in ((2, 1), (1, 1), (1, 2), (1, 3)):
        changed = x.clone()
        changed[0, 0, row, column] += 1
        assert not torch.equal(net(changed)[..., 2, 2], net(x)[..., 2, 2])


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_likelihoods_of_all_maps_sum_to_one(weight):
    model = pixelseg(foreground_weight=weight)
    maps = torch.tensor(list(product((0, 1), repeat=4))).view(16, 2, 2)
    image = images(1, 1, 4, 4).expand(16, -1, -1, -1)
    p = likelihood(model, image, maps)
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    assert p.max() < 0.9, "one map has nearly all of the probability, so that the test shows little"


def test_raster_samples_follow_the_likelihood_of_the_model():
    """Chi-square over the 16 maps of 2×2 pixels; false-alarm rate 1e-6."""
    model, image = pixelseg(), images(1, 1, 4, 4)
    maps = torch.tensor(list(product((0, 1), repeat=4))).view(16, 2, 2)
    with torch.no_grad():
        _, from_image = model.encode(image)
        drawn, _ = by_raster(model, from_image.expand(4000, -1, -1, -1), SeededNoise([(i,) for i in range(4000)]), 1)
    p = likelihood(model, image.expand(16, -1, -1, -1), maps)
    index = (drawn.flatten(1) * torch.tensor([8, 4, 2, 1])).sum(1)
    counts = torch.bincount(index, minlength=16)
    often = p * 4000 > 5
    counts, p = (torch.cat([v[often], v[~often].sum()[None]]) for v in (counts, p))
    assert stats.chisquare(counts[p > 0], (p / p.sum() * 4000)[p > 0]).pvalue > 1e-6


@torch.no_grad()
def slow_raster(model, from_image, u):
    """Draw pixel by pixel with a whole pass of the network per pixel."""
    maps = torch.zeros(u.shape, dtype=torch.int64)
    for i in range(u.shape[1]):
        for j in range(u.shape[2]):
            logits = model.half_logits(from_image, one_hot(maps, model.num_classes)) - model.log_weights
            log_p = torch.log_softmax(logits, dim=1)[:, :, i : i + 1, j : j + 1]
            maps[:, i, j] = draw_categorical(log_p, u[:, i : i + 1, j : j + 1])[:, 0, 0]
    return maps


@pytest.mark.parametrize("classes", [2, 3])
def test_raster_and_converged_sweeps_equal_the_slow_reference(classes):
    model, keys = pixelseg(classes), [(7, i) for i in range(6)]
    with torch.no_grad():
        from_image = model.encode(images(1, 1, 11, 14))[1].expand(6, -1, -1, -1)
        slow = slow_raster(model, from_image, SeededNoise(keys).uniform((6, 6, 7)))
        assert slow.unique().numel() == classes
        raster, calls = by_raster(model, from_image, SeededNoise(keys), 1)
        assert torch.equal(raster, slow)
        assert calls == 42
        converged, calls = by_sweeps(model, from_image, SeededNoise(keys), 100)
        assert torch.equal(converged, slow)
        assert 1 < calls <= 43
        for sweeps in (1, 3, 10):
            some, _ = by_sweeps(model, from_image, SeededNoise(keys), sweeps)
            assert torch.equal(some.flatten(1)[:, :sweeps], slow.flatten(1)[:, :sweeps])


def test_evaluations_of_every_sampler():
    model, image = pixelseg(3), images(1, 1, 6, 6)
    calls = {
        name: model.sample(image, 3, evaluations=2, sampler=name).evaluations for name in ("raster", "sweeps", "gibbs")
    }
    assert calls == {"raster": 10, "sweeps": 3, "gibbs": 3}


def test_even_kernel_is_refused():
    with pytest.raises(UserError, match="(?s)pixel_kernel.*odd.*4"):
        pixelseg(pixel_kernel=4)


def test_unet_runs_once_per_image():
    model = pixelseg()
    calls = batch_sizes(model.unet)
    model.sample(images(2, 1, 8, 8), 5)
    assert calls == [2]


def test_smoothing_is_closing_and_median():
    labels = torch.randint(2, (5, 12, 9))
    for one, out in zip(labels.numpy(), smoothed(labels, 2).numpy(), strict=True):
        grown = ndimage.maximum_filter(one, 3, mode="constant", cval=0)
        closed = ndimage.minimum_filter(grown, 3, mode="constant", cval=1)
        assert (out == ndimage.median_filter(closed, 3, mode="nearest")).all()


def test_smoothing_of_several_classes_keeps_smooth_regions():
    labels = torch.zeros(1, 8, 9, dtype=torch.int64)
    labels[:, :, 3:6], labels[:, :, 6:] = 1, 2
    assert torch.equal(smoothed(labels, 3), labels)
    holes = labels.clone()
    holes[0, 4, 4], holes[0, 2, 7] = 0, 1
    assert torch.equal(smoothed(holes, 3), labels)
