"""Models of volumes: slices pass through the layers for images, and a sample is one reading of the whole volume."""

import warnings

import numpy as np
import pytest
import torch

from stochseg.errors import CutLabelsWarning, UserError
from stochseg.models import create
from stochseg.models.registry import MODELS
from stochseg.models.sampling import SamplingOptions
from tests.support.models import SMALLEST, fresh, lively, perturb
from tests.support.readings import learn_readings

TAKING = [name for name in MODELS if MODELS[name].takes_volumes]
VOLUMES = [name for name in SMALLEST if name.partition("+")[0] in TAKING]
RAW = np.random.default_rng(0).integers(256, size=(5, 14, 18), dtype=np.uint8)


def volume(depth=4, seed=0, size=(16, 16)):
    return torch.rand(2, 1, depth, *size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def raters(depth=4, size=(16, 16)):
    return torch.randint(2, (2, 3, depth, *size), generator=torch.Generator().manual_seed(1))


def pair(name):
    """The same model for images and for volumes, with one slice-wise network: no mixing yet."""
    flat = lively(name)
    deep = fresh(name, spatial_dims=3)
    missing = deep.load_matching_weights(flat)
    assert missing
    assert all(".mixing." in key for key in missing)
    return flat, deep.eval()


def test_the_expected_models_take_volumes():
    assert {"ccdm", "ccdm-fast", "prob-unet", "ssn", "unet-ce"} <= set(TAKING)


@pytest.mark.parametrize("name", VOLUMES)
def test_a_volume_of_one_slice_is_an_image(name):
    flat, deep = pair(name)
    image, maps = volume(1), raters(1)
    keys = [(0, 1), (0, 2)]
    loss2 = flat(image[:, :, 0], maps[:, :, 0], keys=keys)["loss"]
    loss3 = deep(image, maps, keys=keys)["loss"]
    torch.testing.assert_close(loss3, loss2)
    options = SamplingOptions(n=3, evaluations=3 if flat.sampling_choices else None)
    options = options.or_default(flat.default_sampling())
    with torch.no_grad():
        drawn2, drawn3 = (m._draw(x, keys, options, None)[3] for m, x in ((flat, image[:, :, 0]), (deep, image)))
    assert torch.equal(drawn3.labels[:, :, 0], drawn2.labels)
    torch.testing.assert_close(drawn3.mean[:, :, 0], drawn2.mean)


def test_a_new_network_sees_each_slice_alone():
    flat, deep = pair("unet-ce")
    x = volume()
    expected = torch.stack([flat.logits(x[:, :, d]) for d in range(4)], dim=2)
    torch.testing.assert_close(deep.logits(x), expected)


@pytest.mark.parametrize("name", VOLUMES)
def test_slices_see_their_neighbors(name):
    model = perturb(fresh(name, spatial_dims=3), 0.3).eval()
    one, other = volume(), volume()
    other[:, :, 3] = -other[:, :, 3]
    keys, options = [(0, 1), (0, 2)], SamplingOptions(n=2).or_default(model.default_sampling())
    if options.evaluations:
        options = options.model_copy(update={"evaluations": 3})
    with torch.no_grad():
        means = [model._draw(x, keys, options, None)[2].mean[:, :, 2] for x in (one, other)]
    assert not torch.equal(*means)


@pytest.mark.parametrize("name", VOLUMES)
def test_samples_of_a_raw_volume(name):
    model = lively(name, spatial_dims=3)
    options = {"evaluations": 3} if model.sampling_choices else {}
    drawn = model.sample(RAW, 3, seed=5, **options)
    assert drawn.labels.shape == (1, 3, 5, 14, 18)
    assert drawn.mean.shape == (1, 2, 5, 14, 18)
    torch.testing.assert_close(drawn.mean.sum(1), torch.ones(1, 5, 14, 18))
    both = model.sample(np.stack([RAW[::-1], RAW]), 3, seed=5, **options)
    assert torch.equal(both.labels[1], drawn.labels[0])


@pytest.mark.parametrize("name", VOLUMES)
def test_every_weight_is_trained(name):
    if name.endswith(("+pixels", "+weighted")):
        pytest.skip("an option of sampling")
    model = perturb(fresh(name, spatial_dims=3))
    mask = torch.ones_like(raters(), dtype=torch.bool)
    mask[:, :, 0, :4] = False
    model(volume(), raters(), mask)["loss"].backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_component_is_a_reading_of_the_whole_volume():
    """Its weight comes from the average over all slices: more copies of a slice change nothing, another slice does."""
    _, model = pair("ccdm-fast+mixture")

    def weights(x):
        labels = torch.zeros(2, *x.shape[2:], dtype=torch.int64)
        return model.denoiser.propose(labels, torch.tensor([9, 9]), model.denoiser.encode(x))[0]

    x = volume()
    one = weights(x[:, :, :1])
    assert one.shape == (2, 3)
    torch.testing.assert_close(weights(x[:, :, :1].expand(-1, -1, 7, -1, -1)), one)
    assert not torch.allclose(weights(x[:, :, :2]), one)


def test_a_repeated_slice_is_as_likely_to_be_empty_as_the_slice():
    """7 of 10 raters mark volumes of two slices. Slices drawn independently would mark one of eight in every sample."""
    torch.manual_seed(0)
    towers = {"tower": [8, 8], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 20, "evaluations": 5}
    model = create("ccdm-fast", 2, spatial_dims=3, components=3, anneal=40, **towers)
    learn_readings(model, steps=100, lr=1e-2, batch=4, depth=2)
    alone, repeated = (
        model.sample(torch.zeros(1, 1, depth, 4, 4), 256, seed=depth, noise="independent").labels[0].flatten(1).any(1)
        for depth in (1, 8)
    )
    p, q = alone.double().mean(), repeated.double().mean()
    assert abs(p - q) < 3 * torch.sqrt((p * (1 - p) + q * (1 - q)) / 256)
    assert p == pytest.approx(0.7, abs=0.15)


def test_a_repeated_slice_is_proposed_what_the_slice_is():
    """Equal noise in all slices: the same components, for any key."""
    model = lively("ccdm-fast", spatial_dims=3, components=3, share_first=True, first_maps=2, tower_blocks=1)
    slice_ = volume(1)

    @torch.no_grad()
    def propose(image, keys):
        return model._propose_first(model.denoiser.encode(image), keys, image.shape[2:], None)

    weights, maps = propose(slice_, [(0, 1), (0, 2)])
    repeated_weights, repeated_maps = propose(slice_.expand(-1, -1, 5, -1, -1).contiguous(), [(7, 3), (7, 4)])
    torch.testing.assert_close(repeated_weights, weights)
    torch.testing.assert_close(repeated_maps, maps.expand(-1, -1, -1, 5, -1, -1))
    assert weights.std(1).min() > 1e-4, "components differ"


def test_focus_is_in_the_plane():
    model = lively("ccdm-fast", spatial_dims=3, focus=8)
    assert model.window(30, 16, 12) == (slice(0, 30), slice(4, 12), slice(2, 10))
    with warnings.catch_warnings(action="ignore", category=CutLabelsWarning):
        drawn = model.sample(RAW, 2, evaluations=2)
    assert not drawn.labels[..., :3, :].any()
    assert drawn.window == ((0, 5), (3, 11), (5, 13))


def test_models_of_images_refuse_volumes():
    with pytest.raises(UserError, match=r"'phiseg' takes images.*ccdm-fast"):
        create("phiseg", spatial_dims=3)


@pytest.mark.parametrize(("dims", "wrong"), [(3, np.zeros((8, 8), np.uint8)), (2, np.zeros((2, 2, 8, 8), np.uint8))])
def test_the_wrong_number_of_dimensions_is_refused(dims, wrong):
    model = lively("unet-ce", spatial_dims=dims)
    with pytest.raises(UserError, match="volume"):
        model.sample(wrong)


def test_a_batch_of_images_in_a_model_of_volumes_is_refused():
    model = lively("unet-ce", spatial_dims=3)
    with pytest.raises(UserError, match='"b c d h w"'):
        model(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.int64))
