"""ccdm-fast: the focus, the shared first evaluation, Latin noise, the mixture, and starting from a trained model."""

from copy import deepcopy

import pytest
import torch

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import load, save
from stochseg.models.raters import Target, draw_pairs, time_steps
from tests.support.extras import import_or_skip
from tests.support.models import batch_sizes, fresh, images, labels, perturb

TINY = {"num_timesteps": 20, "evaluations": 4}


def fast(classes=2, **config):
    return perturb(fresh("ccdm-fast", classes, **{**TINY, **config}), 0.2).eval()


def image(b=1, h=32, w=32):
    return images(b, 1, h, w)


# --- focus ------------------------------------------------------------------------------------------------


def test_labels_vary_only_inside_the_focus():
    out = fast(3, focus=8).sample(image(2, 32, 20), 4)
    inside = torch.zeros(32, 20, dtype=torch.bool)
    inside[12:20, 6:14] = True
    assert (out.labels[..., ~inside] == 0).all()
    assert out.labels[..., inside].unique().numel() > 1
    assert (out.mean[:, 0][..., ~inside] == 1).all()
    assert (out.mean[:, 1:][..., ~inside] == 0).all()
    torch.testing.assert_close(out.mean.sum(1), torch.ones(2, 32, 20))


def test_samples_of_the_focus_are_those_of_the_cropped_image():
    x, keys = image(), [(0, 7)]  # `sample` would derive different keys from the two images
    options = fast().default_sampling().model_copy(update={"n": 4})
    with torch.no_grad():
        out = fast(focus=8)._draw(x, keys, options, None)[4]
        cropped = fast()._draw(x[..., 12:20, 12:20], keys, options, None)[4]
    assert torch.equal(out.labels[..., 12:20, 12:20], cropped.labels)
    assert torch.equal(out.mean[..., 12:20, 12:20], cropped.mean)


def test_loss_depends_only_on_labels_inside_the_focus():
    model, x = fast(focus=8), image()
    raters = labels(1, 3, 2, 32, 32)
    outside, inside = raters.clone(), raters.clone()
    outside[..., :12, :] = 1 - outside[..., :12, :]
    inside[..., 15, 15] = 1 - inside[..., 15, 15]
    loss = model(x, raters, keys=[(1,)])["loss"]
    assert torch.equal(model(x, outside, keys=[(1,)])["loss"], loss)
    assert not torch.equal(model(x, inside, keys=[(1,)])["loss"], loss)


def test_image_smaller_than_the_focus_is_sampled_as_without_focus():
    x = image(1, 9, 40)
    assert torch.equal(fast(focus=64).sample(x, 2).labels, fast().sample(x, 2).labels)


# --- the shared first evaluation --------------------------------------------------------------------------


@pytest.mark.parametrize(("share_first", "rows"), [(True, [2, 10, 10, 10]), (False, [10] * 4)])
def test_first_evaluation_is_shared_by_the_samples_of_an_image(share_first, rows, monkeypatch):
    model, seen = fast(share_first=share_first), []
    propose = model.denoiser.propose
    monkeypatch.setattr(model.denoiser, "propose", lambda x_t, *rest: seen.append(len(x_t)) or propose(x_t, *rest))
    model.sample(image(2), 5)
    assert seen == rows


def test_samples_that_share_the_first_evaluation_differ():
    maps = fast().sample(image(), 6).labels
    assert (maps != maps[:, :1]).any()


def test_several_first_maps_are_a_mixture_of_their_proposals():
    """Its probabilities are the mean of those of each map, by brute force, whatever the keys."""
    model, x = fast(3, components=2, first_maps=3), image(2)
    with torch.no_grad():
        condition = model.denoiser.encode(x)
        log_weight, logits = model._propose_first(condition, [(0, 1), (0, 2)], (32, 32), None)
        again = model._propose_first(condition, [(5, 3), (5, 4)], (32, 32), None)
        expected = torch.zeros(2, 3, 32, 32)
        for k in range(3):
            noise = model.process.prior((1, 32, 32), SeededNoise([(k,)])).expand(2, 32, 32)
            expected += model.denoiser(noise, torch.full((2,), 20), condition).softmax(1) / 3
    assert log_weight.shape == (2, 6)
    found = (log_weight.exp()[..., None, None, None] * logits.softmax(2)).sum(1)
    torch.testing.assert_close(found, expected)
    assert torch.equal(logits, again[1])


def test_several_first_maps_are_drawn_in_equal_parts():
    model = fast(3, first_maps=2, evaluations=1, noise="latin")

    def propose(x_t, t, condition):
        label = (x_t[:, 0, 0] + 1) % 3  # of one component without a choice: the map decides
        logits = 50.0 * torch.eye(3)[label][:, None, :, None, None].expand(-1, 1, 3, *x_t.shape[1:])
        return torch.zeros(len(x_t), 1), logits

    model.denoiser.propose = propose
    firsts = [int(model.process.prior((1, 4, 4), SeededNoise([(k,)]))[0, 0, 0] + 1) % 3 for k in range(2)]
    maps = model.sample(image(1, 4, 4), 8).labels
    assert sorted(maps[0, :, 0, 0].tolist()) == sorted(firsts * 4)


def test_image_tower_runs_once_for_any_number_of_chunks():
    model = fast(chunk=1)
    towers = batch_sizes(model.denoiser.image_tower), batch_sizes(model.denoiser.label_tower)
    model.sample(image(1, 128, 128), 3, evaluations=4)
    assert towers == ([1], [1] + 3 * [1, 1, 1]), "one shared evaluation, then three per sample"


# --- Latin noise ------------------------------------------------------------------------------------------


@pytest.fixture
def mixture():
    """A model that proposes one label everywhere per component, with probabilities 1/2, 1/4 and 1/4."""
    model = fast(3, components=3, evaluations=1, noise="latin")

    def propose(x_t, t, condition):
        log_weight = torch.tensor([0.5, 0.25, 0.25]).log().expand(len(x_t), 3)
        logits = 50 * torch.eye(3)[None, :, :, None, None].expand(len(x_t), 3, 3, *x_t.shape[1:])
        return log_weight, logits

    model.denoiser.propose = propose
    return model


@pytest.mark.parametrize("seed", range(3))
def test_latin_noise_draws_components_in_proportion_to_their_weights(mixture, seed):
    maps = mixture.sample(image(1, 4, 4), 8, seed=seed).labels
    assert torch.bincount(maps[0, :, 0, 0], minlength=3).tolist() == [4, 2, 2]
    assert (maps == maps[..., :1, :1]).all(), "a sample shows a single component"


def test_independent_noise_draws_components_with_their_probabilities(mixture):
    counts = torch.bincount(mixture.sample(image(1, 4, 4), 400, noise="independent").labels[0, :, 0, 0], minlength=3)
    assert ((counts - torch.tensor([200, 100, 100])).abs() < 5 * torch.tensor([100.0, 75.0, 75.0]).sqrt()).all()


# --- the mixture ------------------------------------------------------------------------------------------


def test_mixture_trained_with_the_bound_is_refused():
    with pytest.raises(UserError, match="objective.*cross-entropy.*4 components.*'kl'"):
        fast(components=4, objective="kl")


def test_components_separate_with_training_steps_only():
    model = fast(components=3, anneal=2).train()
    raters = torch.zeros(1, 2, 32, 32, dtype=torch.int64)
    losses = [model(image(), raters, keys=[(1,)])["loss"].item() for _ in range(4)]
    assert model.updates.item() == 4
    assert losses[0] != losses[1] != losses[2] == losses[3]
    model.eval()(image(), raters)
    assert model.updates.item() == 4


# --- the entropy profile ----------------------------------------------------------------------------------


def test_calibration_measures_the_profile_of_the_grid():
    """The entropy of a network that is certain from t = 10 down falls there, and the grid evaluates it there."""
    model = fast(grid="entropy", evaluations=5)

    def propose(x_t, t, condition):
        logits = torch.zeros(len(x_t), 1, 2, *x_t.shape[1:])
        logits[:, :, 0] = torch.where(t <= 10, 50.0, 0.0)[:, None, None, None]
        return torch.zeros(len(x_t), 1), logits

    model.denoiser.propose = propose
    before = model.config
    model.calibrate_sampling([image(), image(1, 16, 24)])
    profile = dict(model.config.profile)
    assert sorted(profile) == list(range(1, 21))
    for t, left in profile.items():
        assert left == pytest.approx(0.693147 if t > 10 else 0.0, abs=1e-5)
    assert model.config.model_copy(update={"profile": ()}) == before
    grid = model._plan(model.default_sampling())[1]
    assert grid[0] == 20
    assert all(abs(t - 10.5) <= 3 for t in grid[1:]), grid


def test_profile_is_the_mean_over_images_of_any_size():
    """In batches of one size, or image by image."""
    inputs = [image(1, 96, 96), image(1, 16, 24), image(1, 96, 96) / 2, image(1, 16, 24) / 3]
    model, one_at_a_time = fast(), fast(chunk=1)
    together, apart = (m.entropy_profile(inputs, samples=2, evaluations=4) for m in (model, one_at_a_time))
    for (t, left), (_, other) in zip(together, apart, strict=True):
        assert left == pytest.approx(other, abs=1e-4), t
    assert model.entropy_profile(inputs[:1], samples=2, evaluations=4) != together


def test_profile_is_saved_with_the_model(tmp_path):
    model = fast(grid="entropy", evaluations=5)
    model.calibrate_sampling([image()])
    again = load(save(model, tmp_path / "model"))
    assert len(again.config.profile) == 20
    assert again.config == model.config


# --- starting from a trained model ------------------------------------------------------------------------


def test_all_weights_of_a_model_of_the_same_shape_are_copied():
    source, model = fast(), fresh("ccdm-fast", **TINY)
    assert model.load_matching_weights(source) == []
    assert torch.equal(model.sample(image(), 3).labels, source.sample(image(), 3).labels)


def test_components_start_as_copies_of_a_single_head_with_different_thresholds():
    source, model = fast(3), fresh("ccdm-fast", 3, **TINY, components=3)
    assert model.load_matching_weights(source) == [
        "denoiser.label_tower.share.1.bias",
        "denoiser.label_tower.share.1.weight",
        "updates",
    ]
    x_t, t = torch.zeros(1, 32, 32, dtype=torch.int64), torch.tensor([5])
    _, logits = model.denoiser.propose(x_t, t, model.denoiser.encode(image()))
    expected = source.denoiser(x_t, t, source.denoiser.encode(image()))
    torch.testing.assert_close(logits[:, 1], expected)
    foreground = logits.softmax(2)[:, :, 1:].sum(2).flatten(2).mean(2)[0]
    assert foreground[0] < foreground[1] < foreground[2]


def test_head_of_another_number_of_classes_keeps_its_initial_weights():
    kept = fast(4, components=2).load_matching_weights(fast(2))
    assert "denoiser.label_tower.head.2.weight" in kept
    assert not any("image_tower" in name for name in kept)


@pytest.mark.parametrize(("classes", "components", "kept"), [(2, 2, 7), (3, 2, 0), (2, 4, 7), (2, 3, 0)])
def test_annealing_continues_for_a_copied_head_and_restarts_for_a_new_one(classes, components, kept):
    source, model = fast(2, components=2), fast(classes, components=components)
    source.updates.fill_(7)
    model.load_matching_weights(source)
    assert model.updates.item() == kept


def test_weights_of_another_kind_of_model_are_refused():
    with pytest.raises(UserError, match="'unet-ce'.*'ccdm-fast'"):
        fast().load_matching_weights(fresh("unet-ce"))


# --- time steps of training -------------------------------------------------------------------------------


@pytest.mark.parametrize(("t_power", "pure"), [(1.0, 0.0), (2.0, 0.0), (2.0, 0.25), (1.0, 1.0)])
def test_time_steps_are_drawn_by_t_power_and_the_share_of_pure_noise(t_power, pure):
    maps, keys = torch.zeros(1000, 1, 1, 1, dtype=torch.int64), [(i,) for i in range(1000)]
    _, _, u, _ = draw_pairs(maps, None, torch.ones(1000), keys, draws=4)
    t = time_steps(u, 10, t_power, pure)
    found = torch.bincount(t, minlength=11)[1:] / 4000
    expected = (1 - pure) * ((torch.arange(11) / 10) ** t_power).diff()
    expected[-1] += pure
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_one_of_two_draws_of_each_image_is_pure_noise():
    maps, keys = torch.zeros(100, 1, 1, 1, dtype=torch.int64), [(i,) for i in range(100)]
    _, _, u, _ = draw_pairs(maps, None, torch.ones(100), keys, draws=2)
    assert ((time_steps(u, 10**9, pure=0.5) == 10**9).view(100, 2).sum(1) == 1).all()


@pytest.mark.parametrize("objective", ["cross-entropy", "kl"])
def test_before_denoising_starts_each_image_has_one_draw_of_pure_noise(objective):
    given = {"image": image(2), "raters": labels(2, 1, 2, 32, 32), "keys": [(1,), (2,)]}
    model = fast(denoise_from=0.6, draws=2, pure=0.5, objective=objective)
    pure = fast(draws=1, pure=1, objective=objective)(**given)["loss"]
    mixed = fast(draws=2, pure=0.5, objective=objective)(**given)["loss"]
    assert not torch.equal(pure, mixed)
    for progress, expected in ((0.0, pure), (0.59, pure), (0.6, mixed), (1.0, mixed)):
        model.training_progress = progress
        assert torch.equal(model(**given)["loss"], expected)


def test_outside_of_a_training_denoising_is_on():
    given = {"image": image(), "raters": labels(1, 1, 2, 32, 32), "keys": [(1,)]}
    assert torch.equal(fast(denoise_from=1)(**given)["loss"], fast()(**given)["loss"])


def test_bound_does_not_depend_on_the_distribution_of_t():
    """Terms are weighted by the inverse of the probability of t, which leaves their mean over t unchanged."""
    x0 = labels(1, 1, 2, 4, 4)[0]
    means = []
    for t_power, pure in ((1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (2.0, 0.5)):
        model = fast(objective="kl", t_power=t_power, pure=pure, num_timesteps=10).double()
        condition, rows = model.denoiser.encode(image(1, 4, 4).double()), torch.zeros(1, dtype=torch.int64)
        p = (1 - pure) * ((torch.arange(11) / 10).double() ** t_power).diff()  # of t = 1..10
        p[-1] += pure
        with torch.no_grad():
            terms = [
                model._terms(Target(x0, None), 1 - x0, torch.tensor([t]), condition[rows]).item() * p[t - 1].item()
                for t in range(1, 11)
            ]
        means.append(sum(terms))
    assert means == pytest.approx([means[0]] * 4, rel=1e-6)


# --- pretrained features ----------------------------------------------------------------------------------

FEATURES = {"encoder": "efficientnet-lite0", "encoder_weights": "random", "tower": [8] * 5, "light": [8, 8]}


def with_features(**config):
    import_or_skip("timm")
    return fast(**{**FEATURES, **config})


def test_features_enter_the_image_tower_at_their_own_resolution():
    model = with_features()
    tower = model.denoiser.image_tower
    assert tower.feature_levels == (0, 1, 2, 3, 4)
    assert [join.in_channels for join in tower.join] == [16, 24, 40, 112, 320]
    before = model.sample(image(), 2).mean
    for i in range(5):
        other = deepcopy(model)
        other.denoiser.image_tower.join[i].weight.data.add_(1)
        assert not torch.equal(other.sample(image(), 2).mean, before)


@pytest.mark.parametrize(("encoder_lr", "factors"), [(0.1, [1.0, 0.1]), (0.0, [1.0])])
def test_the_encoder_is_trained_at_its_own_learning_rate_or_frozen(encoder_lr, factors):
    model = with_features(encoder_lr=encoder_lr)
    groups = model.parameter_groups()
    assert [group.get("lr_factor", 1.0) for group in groups] == factors
    trained = {id(p) for group in groups for p in group["params"]}
    assert len(trained) == sum(len(group["params"]) for group in groups)
    encoder = {id(p) for p in model.denoiser.encoder.parameters()}
    assert (encoder <= trained) == (encoder_lr > 0)
    assert trained | encoder == {id(p) for p in model.parameters()}
    model.train()
    model(image(), labels(1, 2, 2, 32, 32))["loss"].backward()
    stem = model.denoiser.encoder.body.conv_stem.weight.grad
    assert stem is None if encoder_lr == 0 else stem.abs().sum() > 0
    assert not any(module.training for module in model.denoiser.encoder.modules())


def test_a_saved_model_holds_its_encoder(tmp_path):
    model = with_features()
    loaded = load(save(model, tmp_path / "model"))
    assert torch.equal(loaded.sample(image(), 2).mean, model.sample(image(), 2).mean)
    assert loaded.denoiser.encoder.is_trained


def test_an_encoder_of_one_level_joins_that_level():
    model = fast(encoder="hog", tower=[8, 8, 8], light=[8])
    assert model.denoiser.image_tower.feature_levels == (2,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encoder": "hog", "tower": [8, 8], "light": [8]}, r"\(8,\).*\(2, 4\).*tower"),
        ({**FEATURES, "encoder_cache": "cache"}, "encoder_cache.*encoder_lr=0"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        fast(**config)
