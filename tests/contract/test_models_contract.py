"""What every registered model promises, over the whole registry.

Parameters are randomized where a test looks at samples: several layers begin at zero, and a model that says
nothing keeps any promise.
"""

import random
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.models import MODELS, load, save
from stochseg.models.registry import FAMILIES
from stochseg.models.sampling import SamplingOptions
from stochseg.types import DatasetInfo
from tests.support.models import SMALLEST, few, fresh, images, labels, lively, phantoms

# The part of the loss that must fall, where it is not the whole. A game's loss is no measure of progress: what one
# player gains the other loses. Of car it is the cross-entropy of its calibration network, which plays against nobody.
FALLS = {"car": "cross_entropy"}
# A pixel whose two best labels are within rounding of each other may go either way.
PIXELS_THAT_MAY_DIFFER = 1e-3


@pytest.fixture(params=sorted(SMALLEST))
def name(request) -> str:
    if request.param.startswith("smp:") and find_spec("segmentation_models_pytorch") is None:
        pytest.skip("segmentation_models_pytorch is not installed")
    return request.param


def test_every_registered_model_is_held_to_its_promises():
    names = {name.partition("+")[0] for name in SMALLEST}
    assert {name for name in names if ":" not in name} == set(MODELS)
    assert {name.partition(":")[0] for name in names if ":" in name} == set(FAMILIES)


def without_batch_statistics(model):
    """The models named smp:... normalize over the batch when they train: there an example's loss depends on its
    neighbors, and of the two values that a deep level of two tiny images has only the sign is left, with no gradient.
    The test that looks for gradients keeps these layers as they are in evaluation."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def share_differing(a, b) -> float:
    return (a != b).float().mean().item()


# --- training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (4, 3)])
@pytest.mark.parametrize("raters", [1, 3])
def test_loss_is_a_finite_scalar_with_a_gradient(name, classes, channels, raters):
    loss = fresh(name, classes, channels)(images(2, channels), labels(2, raters, classes))["loss"]
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert loss.requires_grad


@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (4, 3)])
def test_gradients_reach_every_trainable_parameter(name, classes, channels):
    model = without_batch_statistics(lively(name, classes, channels).train())
    model(images(2, channels, 8, 8), labels(2, 3, classes, 8, 8))["loss"].backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    size = {n: 0.0 if p.grad is None else p.grad.abs().max().item() for n, p in trained.items()}
    # Less than a hundred-thousandth of the largest is rounding, not a gradient.
    assert [n for n, s in size.items() if not 1e-5 * max(size.values()) < s < np.inf] == []


def test_loss_falls_on_a_handful_of_phantoms(name):
    model, batch = fresh(name), phantoms(8)
    held = [[(7, i, j) for i in range(8)] for j in range(8)]

    @torch.no_grad()
    def loss():
        part = FALLS.get(name, "loss")
        return np.mean([model(batch.image, batch.raters, keys=keys)[part].item() for keys in held])

    before = loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        model(batch.image, batch.raters)["loss"].backward()
        optimizer.step()
    assert loss() < 0.6 * before


def test_equal_keys_give_equal_losses(name):
    model, x, y = lively(name), images(2), labels(2, 4, 2)
    one, two = (model(x, y, keys=[(5, 1), (5, 2)])["loss"] for _ in range(2))
    assert torch.equal(one, two)


def test_loss_of_a_batch_is_the_mean_over_its_examples(name):
    model, x, y, keys = lively(name), images(4), labels(4, 3, 2), [(9, i) for i in range(4)]
    assert not model.training, "the models named smp:... normalize over the batch when they train"
    alone = [model(x[i : i + 1], y[i : i + 1], keys=keys[i : i + 1])["loss"] for i in range(4)]
    torch.testing.assert_close(model(x, y, keys=keys)["loss"], torch.stack(alone).mean(), rtol=1e-5, atol=1e-6)


def test_labels_under_the_mask_do_not_matter(name):
    model, x, y = lively(name), images(2), labels(2, 3, 2)
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(4)) < 0.7
    keys = [(1, 0), (1, 1)]
    reference = model(x, y, mask, keys)["loss"]
    for void in (1 - y, torch.full_like(y, 255), torch.full_like(y, -1)):
        assert torch.equal(model(x, torch.where(mask, y, void), mask, keys)["loss"], reference)
    assert not torch.equal(model(x, torch.where(mask, 1 - y, y), mask, keys)["loss"], reference)


def test_void_is_ignored_by_the_loss_itself(name):
    """`forward` writes background under the mask; a model that learnt from that would learn a lie."""
    model, x, y, keys = lively(name), images(2), labels(2, 3, 2), [(1, 0), (1, 1)]
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(4)) < 0.7
    raters = torch.full((2,), y.shape[1])
    one, other = (model.loss(x, torch.where(mask, y, void), mask, raters, keys)["loss"] for void in (0, 1))
    assert torch.equal(one, other)


def test_a_mask_of_nothing_is_no_mask(name):
    model, x, y, keys = lively(name), images(2), labels(2, 3, 2), [(1, 0), (1, 1)]
    assert torch.equal(model(x, y, torch.ones_like(y, dtype=torch.bool), keys)["loss"], model(x, y, keys=keys)["loss"])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(name, kind):
    model, x, y = lively(name), images(1), labels(1, 2, 2)
    assert torch.equal(model(x, y.to(kind), keys=[(0,)])["loss"], model(x, y, keys=[(0,)])["loss"])


# --- sampling ---------------------------------------------------------------------------------------------


def test_progress_ends_at_its_total_and_latin_noise_is_known(name):
    model, seen = lively(name), []
    model.sample(images(1), 3, noise="latin", progress=lambda *now: seen.append(now), **few(model))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


ITERATIVE = [name for name in sorted(MODELS) if "evaluations" in MODELS[name].sampling_choices]


@pytest.mark.parametrize("name", ITERATIVE)
def test_the_sampling_loop_reads_nothing_from_the_device(name):
    """On the meta device, which has no values to read."""
    model = lively(name).to("meta")
    options = {"sampler": "gibbs"} if name == "pixelseg" else {}  # others look at what they drew
    defaults = SamplingOptions(n=3, **few(model), **options).or_default(model.default_sampling())
    image = torch.empty(2, 1, 16, 16, device="meta")
    with torch.no_grad():
        out = model._draw(image, [(0, 1), (0, 2)], defaults, None)
    assert out.labels.shape == (2, 3, 16, 16)
    assert out.labels.is_meta


def test_defaults_of_sampling_are_options_that_the_model_takes(name):
    model = fresh(name)
    defaults = model.default_sampling()
    model.check_options(defaults)
    assert defaults.noise is not None
    assert (defaults.evaluations is not None) == ("evaluations" in model.sampling_choices)


@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (4, 3)])
def test_samples_are_label_maps_with_probabilities(name, classes, channels):
    model = lively(name, classes, channels)
    out = model.sample(images(2, channels), 3, **few(model))
    assert out.labels.shape == (2, 3, 16, 16)
    assert out.labels.dtype == torch.int64
    assert out.labels.min() >= 0
    assert out.labels.max() < classes
    assert out.mean.shape == (2, classes, 16, 16)
    torch.testing.assert_close(out.mean.sum(1), torch.ones(2, 16, 16), rtol=0, atol=1e-5)
    assert out.mean.min() >= 0
    assert out.weights.shape == (2, 3)
    torch.testing.assert_close(out.weights.sum(1), torch.ones(2), rtol=0, atol=1e-6)
    assert out.evaluations >= 1
    assert out.labels.unique().numel() > 1, "the randomized model drew one label everywhere; the test shows nothing"


def test_the_seed_decides_the_samples(name):
    model, x = lively(name), images(2)
    first, again, other = (model.sample(x, 4, seed=seed, **few(model)) for seed in (3, 3, 4))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.mean, again.mean)
    stochastic = getattr(model.config, "draw", None) != "argmax"
    alike = torch.equal(first.labels, other.labels) and torch.equal(first.mean, other.mean)
    assert alike != stochastic


def test_a_sample_does_not_depend_on_how_many_are_drawn(name):
    model, x = lively(name), images(2)
    some, many = (model.sample(x, n, **few(model)).labels for n in (3, 11))
    assert share_differing(some, many[:, :3]) <= PIXELS_THAT_MAY_DIFFER


def test_a_sample_does_not_depend_on_the_other_images(name):
    model, x = lively(name), images(16)
    together = model.sample(x, 2, **few(model)).labels
    alone = torch.cat([model.sample(x[i : i + 1], 2, **few(model)).labels for i in range(16)])
    assert share_differing(together, alone) <= PIXELS_THAT_MAY_DIFFER


def test_the_order_of_images_changes_no_bit(name):
    model, x = lively(name), images(4)
    order = torch.tensor([2, 0, 3, 1])
    straight, shuffled = model.sample(x, 3, **few(model)), model.sample(x[order], 3, **few(model))
    assert torch.equal(shuffled.labels, straight.labels[order])
    assert torch.equal(shuffled.mean, straight.mean[order])


def test_sampling_leaves_global_random_numbers_alone(name):
    model = lively(name)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    model.sample(images(1), 2, **few(model))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


@pytest.mark.parametrize("training", [True, False])
def test_sampling_restores_the_training_mode(name, training):
    model = lively(name).train(training)
    model.sample(images(1), 1, **few(model))
    assert model.training is training
    with pytest.raises(UserError):
        model.sample(torch.zeros(1, 5, 8, 8), 1)
    assert model.training is training


@pytest.mark.parametrize("size", [(1, 1), (7, 13)])
def test_any_size(name, size):
    model = lively(name)
    assert model.sample(images(1, 1, *size), 1, **few(model)).labels.shape == (1, 1, *size)
    assert torch.isfinite(model(images(1, 1, *size), labels(1, 2, 2, *size))["loss"])


# --- what goes in -----------------------------------------------------------------------------------------


def test_grey_images_in_every_form(name):
    info = DatasetInfo(num_classes=2, image_channels=1, normalization={"mean": (90.0,), "std": (40.0,)})
    model = lively(name, info=info)
    raw = np.random.default_rng(0).integers(0, 256, (9, 12), dtype=np.uint8)
    normalized = (torch.from_numpy(raw).float() - 90) / 40
    expected = model.sample(normalized[None, None], 2, **few(model))
    forms = [raw, raw[..., None], raw.astype(np.float64), raw.astype(np.uint16), Image.fromarray(raw)]
    for form in [*forms, normalized[None, None].double()]:
        out = model.sample(form, 2, **few(model))
        assert torch.equal(out.labels, expected.labels)
        assert torch.equal(out.mean, expected.mean)


def test_color_images_in_every_form(name):
    info = DatasetInfo(
        num_classes=3, image_channels=3, normalization={"mean": (90.0, 100.0, 110.0), "std": (40.0, 50.0, 60.0)}
    )
    model = lively(name, 3, 3, info=info)
    indices = np.random.default_rng(0).integers(0, 4, (9, 12), dtype=np.uint8)
    palette = np.array([[0, 10, 200], [90, 90, 90], [255, 0, 0], [3, 250, 8]], np.uint8)
    raw = palette[indices]
    mean, std = torch.tensor([90.0, 100.0, 110.0]), torch.tensor([40.0, 50.0, 60.0])
    expected = model.sample(((torch.from_numpy(raw).float() - mean) / std).permute(2, 0, 1)[None], 2, **few(model))
    by_palette = Image.fromarray(indices, mode="P")
    by_palette.putpalette(palette.flatten().tolist())
    for form in (raw, raw.astype(np.float32), Image.fromarray(raw), by_palette):
        assert torch.equal(model.sample(form, 2, **few(model)).labels, expected.labels)


# --- on disk ----------------------------------------------------------------------------------------------


def test_saving_and_loading_changes_no_bit(name, tmp_path):
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("sky", "sea", "ship"), ignore=255)
    model = lively(name, 3, info=info)
    again = load(save(model, tmp_path / "model"))
    assert (type(again), again.info, again.config) == (type(model), model.info, model.config)
    assert not again.training
    expected, out = (m.sample(images(2), 3, seed=1, **few(model)) for m in (model, again))
    assert torch.equal(out.labels, expected.labels)
    assert torch.equal(out.mean, expected.mean)


def test_raters_that_are_not_there_are_never_drawn(name):
    """Padding of an image with fewer raters than its neighbors: neither its content nor its amount matters."""
    model, x, y = lively(name), images(2), labels(2, 3, 2)
    raters, keys = torch.tensor([3, 1]), [(5, 0), (5, 1)]
    padded = [y.clone(), y.clone(), torch.cat([y, y], dim=1)]
    padded[1][1, 1:] = 1 - padded[1][1, 1:].clamp(max=1)
    losses = {round(model(x, labels_, keys=keys, rater_count=raters)["loss"].item(), 7) for labels_ in padded}
    assert len(losses) == 1
