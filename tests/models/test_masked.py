"""Models of masked diffusion: known labels, and that samples follow them."""

import warnings

import numpy as np
import pytest
import torch

from stochseg.core import MASKED_SAMPLERS, SAMPLERS
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.models import load, save
from stochseg.types import DatasetInfo
from tests.support.models import fresh, images, labels, lively, perturb

MASKED = ("ccdm+masked", "ccdm-fast+masked")
KNOWN = torch.full((2, 16, 16), -1)
KNOWN[:, 3:5, 2:9] = torch.arange(14).view(2, 7) % 3
masked_models = pytest.mark.parametrize("name", MASKED)


def certain(samples, known):
    """Whether all samples and the mean have the known labels."""
    is_known = known >= 0
    same = (samples.labels == known[:, None]) | ~is_known[:, None]
    mean = samples.mean.gather(1, known.clamp(min=0)[:, None])[:, 0]
    return bool(same.all()) and bool((mean[is_known] == 1).all())


@masked_models
@pytest.mark.parametrize("sampler", [*SAMPLERS, *MASKED_SAMPLERS])
def test_samples_have_the_known_labels(name, sampler):
    samples = lively(name, 3).sample(images(2), 4, evaluations=4, sampler=sampler, known=KNOWN)
    assert certain(samples, KNOWN)


@masked_models
def test_the_network_sees_known_labels_and_draws_the_others_given_them(name):
    model, seen = lively(name, 3), []
    tower = getattr(model.denoiser, "label_tower", None) or model.denoiser.unet
    tower.register_forward_hook(lambda _, inputs, __: seen.append((inputs[0][:, :3], inputs[1])))
    plain = model.sample(images(2), 3, evaluations=4)
    del seen[:]
    given = model.sample(images(2), 3, evaluations=4, known=KNOWN)
    for onehot, t in seen:
        assert (t == 0).all(), "what masked pixels hide does not depend on t, so the network is not told"
        if "fast" not in name:  # of which cells are seen
            assert torch.equal(onehot.argmax(1)[:, 3:5, 2:9], KNOWN[:1, 3:5, 2:9].expand(len(onehot), -1, -1))
            assert (onehot.sum(1)[:, 3:5, 2:9] == 1).all()
    unknown = (KNOWN < 0)[:, None].expand_as(plain.labels)
    assert not torch.equal(plain.labels[unknown], given.labels[unknown])


@pytest.mark.parametrize("components", [1, 2])
def test_the_network_is_trained_as_it_samples_without_knowing_t(components):
    model, steps = lively("ccdm-fast+masked", 3, components=components).train(), []
    model.denoiser.label_tower.register_forward_hook(lambda _, inputs, __: steps.append(inputs[1]))
    model(images(2), labels(2, 2, 3))
    assert steps
    assert (torch.cat(steps) == 0).all()


@masked_models
def test_the_first_call_sees_nothing_and_is_the_same_for_all_samples(name):
    model, seen = lively(name, 3), []
    tower = getattr(model.denoiser, "label_tower", None) or model.denoiser.unet
    tower.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model.sample(images(1), 3, evaluations=2)
    assert (seen[0][:, :3] == 0).all()
    assert (seen[1][:, :3] != 0).any()


def test_known_labels_may_be_one_map_for_all_images_and_an_array():
    model = lively("ccdm-fast+masked", 3)
    one, both = (model.sample(images(2), 2, known=known) for known in (KNOWN[0].numpy(), KNOWN))
    assert torch.equal(one.labels, both.labels)


def test_known_labels_outside_the_focus_and_of_another_size_are_kept():
    focused = lively("ccdm-fast+masked", 3, focus=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutLabelsWarning)
        assert certain(focused.sample(images(2), 2, known=KNOWN), KNOWN)
    fitted = lively("ccdm-fast+masked", info=DatasetInfo(num_classes=2, image_channels=1, fit=(16, 16)))
    known = torch.full((1, 30, 20), -1)
    known[:, 10:14, 5:9] = 1
    assert certain(fitted.sample(images(1, 1, 30, 20), 2, known=known), known)


def test_all_labels_known_leaves_nothing_to_draw():
    known = labels(2, 1, 3)[:, 0]
    samples = lively("ccdm-fast+masked", 3).sample(images(2), 3, known=known)
    assert (samples.labels == known[:, None]).all()


@pytest.mark.parametrize("name", ["ccdm", "ccdm-fast", "unet-ce", "prob-unet", "ssn"])
def test_other_models_refuse_known_labels(name):
    with pytest.raises(UserError, match="process=masked"):
        lively(name).sample(images(1), 2, known=torch.zeros(16, 16, dtype=torch.int64))


@pytest.mark.parametrize(
    ("known", "key"),
    [
        (torch.zeros(8, 8, dtype=torch.int64), "shape"),
        (torch.zeros(16, 16), "float32"),
        (torch.full((16, 16), 3), "0..2"),
        (np.full((16, 16), -2), "-2"),
    ],
)
def test_bad_known_labels_are_refused(known, key):
    with pytest.raises(UserError, match=f"known.*{key}"):
        lively("ccdm-fast+masked", 3).sample(images(1), 2, known=known)


def test_a_sampler_of_masked_diffusion_is_refused_by_the_uniform_one():
    with pytest.raises(UserError, match="unknown sampler 'polished'"):
        lively("ccdm").sample(images(1), 2, sampler="polished")
    lively("ccdm-fast+masked").sample(images(1), 2, sampler="polished", evaluations=2)


def test_a_schedule_is_refused():
    with pytest.raises(UserError, match="schedule"):
        fresh("ccdm+masked", schedule="linear")


def test_weights_of_uniform_diffusion_start_masked_diffusion(tmp_path):
    """A masked pixel is coded by zeros, so that both processes have the same weights."""
    masked, uniform = fresh("ccdm+masked"), perturb(fresh("ccdm"))
    assert masked.load_matching_weights(uniform) == []
    save(masked, tmp_path / "model")
    assert load(tmp_path / "model").config.process == "masked"
