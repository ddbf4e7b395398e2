"""Properties of every registered model.

Parameters are perturbed where a test looks at outputs: several layers start at zero, and a model that ignores its input
passes any test. Behavior of the base class, which no model overrides, is tested once in tests/models/test_base.py.
"""

import random

import numpy as np
import pytest
import torch

from stochseg.core import NOISES
from stochseg.errors import UserError
from stochseg.models import MODELS, load, save
from stochseg.models.registry import FAMILIES
from stochseg.models.sampling import SamplingOptions, draw_samples
from stochseg.types import DatasetInfo
from tests.support.models import SAMPLING_ONLY, SMALLEST, as_params, few, fresh, images, labels, lively, phantoms

# The part of the loss that must fall, if not the sum. The loss of a game does not measure progress: a gain of one
# player is a loss of the other. This cross-entropy is that of the calibration network, which has no opponent.
FALLING_PART = {"car": "cross_entropy", "car+unet": "cross_entropy"}
# Rounding may decide between two labels of equal probability.
PIXELS_THAT_MAY_DIFFER = 1e-3
ITERATIVE = [name for name in sorted(MODELS) if "evaluations" in MODELS[name].sampling_choices]

every_model = pytest.mark.parametrize("name", as_params(sorted(SMALLEST)))
every_way_to_train = pytest.mark.parametrize(
    "name", as_params(name for name in sorted(SMALLEST) if not name.endswith(SAMPLING_ONLY))
)


def test_every_registered_model_is_tested():
    names = {name.partition("+")[0] for name in SMALLEST}
    assert {name for name in names if ":" not in name} == set(MODELS)
    assert {name.partition(":")[0] for name in names if ":" in name} == set(FAMILIES)


def fraction_differing(a, b) -> float:
    return (a != b).float().mean().item()


# --- training ---------------------------------------------------------------------------------------------


def freeze_batch_statistics(model):
    """Keep batch normalization as in evaluation: over two tiny images only the sign of its input would remain, without
    a gradient."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


@every_way_to_train
@pytest.mark.parametrize(("classes", "channels", "raters"), [(2, 1, 3), (4, 3, 1)])
def test_loss_is_a_finite_scalar_with_a_gradient_for_every_trainable_parameter(name, classes, channels, raters):
    model = freeze_batch_statistics(lively(name, classes, channels).train())
    loss = model(images(2, channels, 8, 8), labels(2, raters, classes, 8, 8))["loss"]
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    parameters = {key: p for key, p in model.named_parameters() if p.requires_grad}
    size = {key: 0.0 if p.grad is None else p.grad.abs().max().item() for key, p in parameters.items()}
    # Less than a hundred-thousandth of the largest gradient is rounding.
    assert [key for key, value in size.items() if not 1e-5 * max(size.values()) < value < np.inf] == []


@every_way_to_train
def test_loss_falls_on_eight_phantoms(name):
    model, batch = fresh(name), phantoms(8)
    part = FALLING_PART.get(name, "loss")

    @torch.no_grad()
    def loss():
        keys = [[(7, i, j) for i in range(8)] for j in range(4)]
        return np.mean([model(batch.image, batch.raters, keys=k)[part].item() for k in keys])

    before = loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(15):
        optimizer.zero_grad()
        model(batch.image, batch.raters, keys=[(step, i) for i in range(8)])["loss"].backward()
        optimizer.step()
    assert loss() < 0.7 * before


@every_way_to_train
def test_loss_depends_on_the_keys(name):
    model, x, y = lively(name), images(2), labels(2, 4, 2)
    first, again, other = (model(x, y, keys=keys)["loss"] for keys in ([(5, 1), (5, 2)],) * 2 + ([(6, 1), (6, 2)],))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_way_to_train
def test_loss_of_a_batch_is_the_mean_over_its_examples(name):
    """In evaluation mode: the models named smp:... normalize over the batch when they train."""
    model, x, y, keys = lively(name), images(4), labels(4, 3, 2), [(9, i) for i in range(4)]
    alone = [model(x[i : i + 1], y[i : i + 1], keys=keys[i : i + 1])["loss"] for i in range(4)]
    torch.testing.assert_close(model(x, y, keys=keys)["loss"], torch.stack(alone).mean(), rtol=1e-5, atol=1e-6)


@every_way_to_train
def test_loss_ignores_void_pixels_and_only_these(name):
    """`forward` replaces void labels by background, so that the model itself is called."""
    model, x, y, keys = lively(name), images(2), labels(2, 3, 2), [(1, 0), (1, 1)]
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(4)) < 0.7
    count = torch.full((2,), y.shape[1])
    zero, one = (model.loss(x, torch.where(mask, y, void), mask, count, keys)["loss"] for void in (0, 1))
    assert torch.equal(zero, one)
    assert not torch.equal(model.loss(x, torch.where(mask, 1 - y, 0), mask, count, keys)["loss"], zero)


@every_way_to_train
def test_mask_without_void_pixels_changes_nothing(name):
    model, x, y, keys = lively(name), images(2), labels(2, 3, 2), [(1, 0), (1, 1)]
    assert torch.equal(model(x, y, torch.ones_like(y, dtype=torch.bool), keys)["loss"], model(x, y, keys=keys)["loss"])


@every_way_to_train
def test_padded_raters_are_never_drawn(name):
    """Neither the content nor the number of maps beyond `rater_count` matters."""
    model, x, y, keys = lively(name), images(2), labels(2, 3, 2), [(5, 0), (5, 1)]
    changed = y.clone()
    changed[1, 1:] = 1 - changed[1, 1:]
    padded = torch.cat([y, y], dim=1)
    count = torch.tensor([3, 1])
    expected, *others = (model(x, maps, keys=keys, rater_count=count)["loss"] for maps in (y, changed, padded))
    for other in others:
        torch.testing.assert_close(other, expected, rtol=1e-6, atol=1e-7)


# --- sampling ---------------------------------------------------------------------------------------------


@every_model
def test_samples_are_label_maps_with_probabilities(name):
    model = lively(name, 4, 3)
    out = model.sample(images(2, 3), 3, **few(model))
    assert out.labels.shape == (2, 3, 16, 16)
    assert out.labels.dtype == torch.int64
    assert out.labels.min() >= 0
    assert out.labels.max() < 4
    assert out.labels.unique().numel() > 1, "the perturbed model draws one label everywhere, so that the test is void"
    assert out.mean.shape == (2, 4, 16, 16)
    assert out.mean.min() >= 0
    torch.testing.assert_close(out.mean.sum(1), torch.ones(2, 16, 16), rtol=0, atol=1e-5)
    assert out.weights.shape == (2, 3)
    torch.testing.assert_close(out.weights.sum(1), torch.ones(2), rtol=0, atol=1e-6)
    assert out.evaluations >= 1
    assert out.info == model.info


def is_stochastic(model) -> bool:
    return getattr(model.config, "draw", None) != "argmax"


@every_model
def test_output_that_is_not_finite_is_an_error(name):
    """The arg-max of NaN is a label: weights that are NaN would look like an image without findings.

    Any of them is an error, or is not used in sampling.
    """
    model, x = lively(name), images(1)
    expected = model.sample(x, 2, **few(model))
    parameters = list(model.parameters())
    problems = []
    for parameter in [*parameters[::23], *parameters[-3:]]:
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nan
            try:
                out = model.sample(x, 2, **few(model))
                assert torch.equal(out.mean, expected.mean)
            except UserError as error:
                problems.append(str(error))
            parameter.copy_(before)
    assert problems
    assert all("NaN or infinite" in problem for problem in problems)


@every_model
def test_seed_determines_the_samples(name):
    model, x = lively(name), images(2)
    first, again, other = (model.sample(x, 4, seed=seed, **few(model)) for seed in (3, 3, 4))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.mean, again.mean)
    same = torch.equal(first.labels, other.labels) and torch.equal(first.mean, other.mean)
    assert same != is_stochastic(model)


@every_model
def test_samples_do_not_depend_on_their_number(name):
    model, x = lively(name), images(2)
    some, many = (model.sample(x, n, **few(model)).labels for n in (3, 11))
    assert fraction_differing(some, many[:, :3]) <= PIXELS_THAT_MAY_DIFFER


@every_model
def test_samples_do_not_depend_on_the_other_images(name):
    """A permutation of a batch changes no bit; a batch of another size changes no more than rounding."""
    model, x, order = lively(name), images(4), torch.tensor([2, 0, 3, 1])
    together, permuted = (model.sample(batch, 3, **few(model)) for batch in (x, x[order]))
    assert torch.equal(permuted.labels, together.labels[order])
    assert torch.equal(permuted.mean, together.mean[order])
    alone = torch.cat([model.sample(one[None], 3, **few(model)).labels for one in x])
    assert fraction_differing(together.labels, alone) <= PIXELS_THAT_MAY_DIFFER


@every_model
def test_the_first_samples_of_many_equal_as_many_alone(name):
    model, x = lively(name, chunk=1), images(2, 1, 64, 64)  # four samples at once, so that chunks cut through both n
    options = SamplingOptions(n=5, noise="independent", seed=3, **({"evaluations": 2} if few(model) else {}))
    if not model.independent:
        with pytest.raises(UserError, match="sample_counts"):
            model.sample_counts(x, [2], options)
        return
    drawn = model.sample_counts(x, [1, 3], options)
    assert list(drawn) == [1, 3, 5]
    for n, part in drawn.items():
        alone = model.sample(x, **options.model_copy(update={"n": n}).model_dump())
        assert fraction_differing(part.labels, alone.labels) <= PIXELS_THAT_MAY_DIFFER
        torch.testing.assert_close(part.mean, alone.mean, atol=1e-3, rtol=0)
        torch.testing.assert_close(part.weights, alone.weights)


@every_model
def test_samples_do_not_depend_on_chunks_and_progress_counts_them(name):
    x, seen = images(2, 1, 64, 64), []
    whole, parts = lively(name, chunk=64), lively(name, chunk=1)
    options = {"n": 3, "noise": "latin", **({"evaluations": 2} if few(whole) else {})}
    expected = whole.sample(x, **options)
    out = parts.sample(x, **options, progress=lambda done, total: seen.append((done, total)))
    assert fraction_differing(out.labels, expected.labels) <= PIXELS_THAT_MAY_DIFFER
    torch.testing.assert_close(out.mean, expected.mean, atol=1e-3, rtol=0)
    counts, totals = zip(*seen, strict=True)
    assert list(counts) == sorted(set(counts))
    assert set(totals) == {counts[-1]}
    assert len(seen) >= 2, "six samples of 64×64 pixels are two chunks of four and two"


@every_model
def test_latin_noise_stratifies_the_samples_of_each_image(name, monkeypatch):
    """Of the uniform numbers that the n samples of an image draw at one place, one is in each of n equal parts."""
    model, n, drawn, latin = lively(name), 5, [], NOISES["latin"]

    class Recorded(latin):
        def uniform(self, shape):
            drawn.append(super().uniform(shape))
            return drawn[-1]

    monkeypatch.setitem(NOISES, "latin", Recorded)
    model.sample(images(2, 1, 8, 8), n, noise="latin", **few(model))
    assert bool(drawn) == is_stochastic(model)
    for u in drawn:
        parts = (u.view(2, n, -1) * n).long().sort(1).values
        assert (parts == torch.arange(n)[:, None]).all()


@every_model
def test_default_options_are_accepted_by_the_model(name):
    model = fresh(name)
    defaults = model.default_sampling()
    model.check_options(defaults)
    assert defaults.noise is not None
    assert (defaults.evaluations is not None) == ("evaluations" in model.sampling_choices)


CHOICES = [(name, option) for name in ITERATIVE for option in MODELS[name].sampling_choices if option != "evaluations"]


@pytest.mark.parametrize(("name", "option"), CHOICES)
def test_unknown_default_sampler_or_grid_is_refused_when_the_model_is_built(name, option):
    with pytest.raises(UserError, match=f"{option} 'nope'.*{min(MODELS[name].sampling_choices[option])}"):
        fresh(name, **{option: "nope"})


@pytest.mark.parametrize("name", ITERATIVE)
def test_sampling_reads_nothing_from_the_device(name):
    """On the meta device, which has no values to read."""
    model = lively(name).to("meta")
    options = {"sampler": "gibbs"} if name == "pixelseg" else {}  # its other samplers read what they drew
    options = SamplingOptions(n=3, **few(model), **options).or_default(model.default_sampling())
    image, keys = torch.empty(2, 1, 16, 16, device="meta"), [(0, 1), (0, 2)]
    with torch.no_grad():
        drawing = model.drawing(image, keys, options)
        out = draw_samples(drawing, keys, (16, 16), options, model.info, chunk=64, device=torch.device("meta"))[3]
    assert out.labels.shape == (2, 3, 16, 16)
    assert out.labels.is_meta


@every_model
def test_sampling_leaves_global_random_state_unchanged(name):
    model = lively(name)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    model.sample(images(1), 2, **few(model))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


@every_model
@pytest.mark.parametrize("size", [(1, 1), (7, 13)])
def test_images_of_any_size_train_and_are_sampled(name, size):
    model = lively(name)
    assert model.sample(images(1, 1, *size), 1, **few(model)).labels.shape == (1, 1, *size)
    assert torch.isfinite(model(images(1, 1, *size), labels(1, 2, 2, *size))["loss"])


# --- on disk ----------------------------------------------------------------------------------------------


@every_model
def test_saved_model_draws_the_same_samples(name, tmp_path):
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("sky", "sea", "ship"), ignore=255)
    model = lively(name, 3, info=info)
    loaded = load(save(model, tmp_path / "model"))
    assert (type(loaded), loaded.info, loaded.config) == (type(model), model.info, model.config)
    assert not loaded.training
    expected, out = (m.sample(images(2), 3, seed=1, **few(model)) for m in (model, loaded))
    assert torch.equal(out.labels, expected.labels)
    assert torch.equal(out.mean, expected.mean)
