"""ccdm-fast: the window of labels, the shared first call, the mixture, and noise shared by samples."""

import pytest
import torch

from stochseg.errors import UserError
from stochseg.models import create, load, save

TINY = {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 20, "steps": 4}


def fast(classes=2, **config):
    torch.manual_seed(0)
    model = create("ccdm-fast", classes, 1, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def image(b=1, h=32, w=32):
    return torch.rand(b, 1, h, w, generator=torch.Generator().manual_seed(1)) * 2 - 1


# --- focus ------------------------------------------------------------------------------------------------


def test_labels_vary_inside_the_focus_only():
    out = fast(3, focus=8).sample(image(2, 32, 20), 4)
    inside = torch.zeros(32, 20, dtype=torch.bool)
    inside[12:20, 6:14] = True
    assert (out.labels[..., ~inside] == 0).all()
    assert out.labels[..., inside].unique().numel() > 1
    assert (out.mean[:, 0][..., ~inside] == 1).all()
    assert (out.mean[:, 1:][..., ~inside] == 0).all()
    torch.testing.assert_close(out.mean.sum(1), torch.ones(2, 32, 20))


def test_the_focus_is_what_a_model_of_the_cropped_image_says():
    x, keys = image(), [(0, 7)]  # the same randomness for both, which is otherwise that of the image
    options = fast().default_sampling().model_copy(update={"n": 4})
    with torch.no_grad():
        out = fast(focus=8)._draw(x, keys, options, None)
        cropped = fast()._draw(x[..., 12:20, 12:20], keys, options, None)
    assert torch.equal(out.labels[..., 12:20, 12:20], cropped.labels)
    assert torch.equal(out.mean[..., 12:20, 12:20], cropped.mean)


def test_the_loss_sees_labels_inside_the_focus_only():
    model, x = fast(focus=8), image()
    labels = torch.randint(2, (1, 3, 32, 32), generator=torch.Generator().manual_seed(2))
    outside, inside = labels.clone(), labels.clone()
    outside[..., :12, :] = 1 - outside[..., :12, :]
    inside[..., 15, 15] = 1 - inside[..., 15, 15]
    loss = model(x, labels, keys=[(1,)])["loss"]
    assert torch.equal(model(x, outside, keys=[(1,)])["loss"], loss)
    assert not torch.equal(model(x, inside, keys=[(1,)])["loss"], loss)


def test_an_image_smaller_than_the_focus_is_all_inside():
    assert fast(focus=64).sample(image(1, 9, 40), 2).labels.shape == (1, 2, 9, 40)


# --- the shared first call --------------------------------------------------------------------------------


def test_the_first_call_is_made_once_an_image(monkeypatch):
    model, rows = fast(), []
    propose = model.denoiser.propose
    monkeypatch.setattr(model.denoiser, "propose", lambda x_t, *rest: rows.append(len(x_t)) or propose(x_t, *rest))
    model.sample(image(2), 5)
    assert rows == [2, 10, 10, 10]
    rows.clear()
    fast_apart = fast(share_first=False)
    monkeypatch.setattr(fast_apart.denoiser, "propose", lambda x_t, *rest: rows.append(len(x_t)) or propose(x_t, *rest))
    fast_apart.sample(image(2), 5)
    assert rows == [10] * 4


def test_samples_differ_though_they_share_the_first_call():
    labels = fast().sample(image(), 6).labels
    assert (labels != labels[:, :1]).any()


def test_the_image_is_read_once_however_many_samples_and_chunks():
    model, seen = fast(chunk=1), []
    for name in ("image_tower", "label_tower"):
        tower = model.denoiser.get_submodule(name)
        tower.register_forward_hook(lambda _, inputs, __, name=name: seen.append((name, len(inputs[0]))))
    model.sample(image(1, 128, 128), 3, evaluations=4)
    assert seen.count(("image_tower", 1)) == 1
    assert len(seen) == 1 + 1 + 3 * 3, "then the first call, and three a sample"


# --- noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["independent", "latin"])
def test_chunks_and_neighbors_change_nothing(noise):
    x = image(3, 64, 64)
    whole, parts = (fast(chunk=chunk, noise=noise).sample(x, 5) for chunk in (64, 1))
    assert (whole.labels != parts.labels).float().mean() <= 1e-3
    alone = fast(noise=noise).sample(x[1:2], 5)
    assert (whole.labels[1:2] != alone.labels).float().mean() <= 1e-3


def test_latin_noise_spreads_the_components_evenly():
    """Shares 1/2, 1/4, 1/4: of 8 samples, 4, 2 and 2 take each in the first call, whatever the seed."""
    model = fast(3, components=3, steps=1, noise="latin")

    def propose(x_t, t, condition):
        share = torch.tensor([0.5, 0.25, 0.25]).log().expand(len(x_t), 3)
        logits = 50 * torch.eye(3)[None, :, :, None, None].expand(len(x_t), 3, 3, *x_t.shape[1:])
        return share, logits

    model.denoiser.propose = propose
    for seed in range(5):
        labels = model.sample(image(), 8, seed=seed).labels
        assert torch.bincount(labels[0, :, 0, 0], minlength=3).tolist() == [4, 2, 2]
        assert (labels == labels[..., :1, :1]).all(), "a sample is one component, whole"
    many = torch.cat([model.sample(image(), 1, seed=s, noise="independent").labels for s in range(400)])
    counts = torch.bincount(many[:, 0, 0, 0], minlength=3)
    assert ((counts - torch.tensor([200, 100, 100])).abs() < 5 * torch.tensor([100.0, 75.0, 75.0]).sqrt()).all()


def test_unknown_noise_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown noise 'pink'.*known: .*independent, latin"):
        fast().sample(image(), 1, noise="pink")


# --- the mixture ------------------------------------------------------------------------------------------


def test_a_mixture_is_not_trained_with_the_bound():
    with pytest.raises(UserError, match="objective=cross-entropy, got 'kl'"):
        create("ccdm-fast", 2, 1, components=4, objective="kl")


def test_the_components_part_with_training_steps_only():
    model = fast(components=3, anneal=2).train()
    labels = torch.zeros(1, 2, 32, 32, dtype=torch.int64)
    losses = [model(image(), labels, keys=[(1,)])["loss"].item() for _ in range(4)]
    assert model.updates.item() == 4
    assert losses[0] != losses[1] != losses[2] == losses[3]
    model.eval()(image(), labels)
    assert model.updates.item() == 4


# --- the entropy profile ----------------------------------------------------------------------------------


def test_settling_measures_the_profile_that_the_grid_needs():
    """A network that is certain from t = 10 down: the profile falls there, and so do the calls."""
    model = fast(grid="entropy", steps=5)

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


def test_the_profile_is_the_mean_of_the_images_whatever_their_sizes():
    model, images = fast(), [image(), image(1, 16, 24), image() / 2, image(1, 16, 24) / 3]
    together = model.entropy_profile(images)
    few = fast(chunk=1).entropy_profile(images)
    for (t, left), (_, one_by_one) in zip(together, few, strict=True):
        assert left == pytest.approx(one_by_one, abs=1e-4), t
    assert model.entropy_profile(images[:1]) != together


def test_the_profile_is_kept_with_the_model(tmp_path):
    model = fast(grid="entropy", steps=5)
    model.calibrate_sampling([image()])
    again = load(save(model, tmp_path / "model"))
    assert len(again.config.profile) == 20
    assert again.config == model.config


# --- beginning with a trained model -----------------------------------------------------------------------


def test_a_trained_model_of_the_same_shape_is_taken_whole():
    source, model = fast(), create("ccdm-fast", 2, 1, **TINY)
    assert model.load_matching_weights(source) == []
    assert torch.equal(model.sample(image(), 3).labels, source.sample(image(), 3).labels)


def test_components_begin_with_the_single_head_at_several_thresholds():
    source, model = fast(3), create("ccdm-fast", 3, 1, **TINY, components=3)
    fresh = model.load_matching_weights(source)
    assert fresh == ["denoiser.label_tower.share.1.bias", "denoiser.label_tower.share.1.weight", "updates"]
    x_t, t = torch.zeros(1, 32, 32, dtype=torch.int64), torch.tensor([5])
    _, logits = model.denoiser.propose(x_t, t, model.denoiser.encode(image()))
    expected = source.denoiser(x_t, t, source.denoiser.encode(image()))
    torch.testing.assert_close(logits[:, 1], expected)
    foreground = logits.softmax(2)[:, :, 1:].sum(2).flatten(2).mean(2)[0]
    assert foreground[0] < foreground[1] < foreground[2]


def test_a_head_of_another_number_of_classes_begins_afresh():
    fresh = fast(4, components=2).load_matching_weights(fast(2))
    assert "denoiser.label_tower.head.2.weight" in fresh
    assert not any("image_tower" in name for name in fresh)


@pytest.mark.parametrize(("classes", "components", "kept"), [(2, 2, 7), (3, 2, 0), (2, 4, 0)])
def test_new_components_part_from_the_beginning(classes, components, kept):
    """The count of training steps comes with a head that is taken over, and not to one that begins afresh."""
    source, model = fast(2, components=2), fast(classes, components=components)
    source.updates.fill_(7)
    model.load_matching_weights(source)
    assert model.updates.item() == kept


# --- which steps are trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("t_power", [1.0, 2.0])
def test_training_prefers_noisy_steps_by_t_power(t_power, monkeypatch):
    model, seen = fast(t_power=t_power, draws=4, num_timesteps=10), []
    monkeypatch.setattr(model, "_terms", lambda x0, x_t, t, valid, condition: seen.append(t) or torch.zeros(()))
    for i in range(40):
        model(image(25, 4, 4), torch.zeros(25, 1, 4, 4, dtype=torch.int64), keys=[(i, k) for k in range(25)])
    found = torch.bincount(torch.cat(seen), minlength=11)[1:] / 4000
    edges = (torch.arange(11) / 10) ** t_power
    torch.testing.assert_close(found, edges.diff(), atol=0.02, rtol=0)


def test_the_bound_is_the_same_whatever_steps_are_preferred():
    """With t drawn by t_power, its terms are weighted by how much rarer t was drawn: the mean over t stays."""
    x0 = torch.randint(2, (1, 4, 4), generator=torch.Generator().manual_seed(3))
    means = []
    for t_power in (1.0, 2.0, 3.0):
        model = fast(objective="kl", t_power=t_power, num_timesteps=10).double()
        condition, rows = model.denoiser.encode(image(1, 4, 4).double()), torch.zeros(1, dtype=torch.int64)
        share = ((torch.arange(11) / 10).double() ** t_power).diff()  # how often t = 1..10 is drawn
        with torch.no_grad():
            terms = [
                model._terms(x0, 1 - x0, torch.tensor([t]), None, condition[rows]).item() * share[t - 1].item()
                for t in range(1, 11)
            ]
        means.append(sum(terms))
    assert means == pytest.approx([means[0]] * 3, rel=1e-6)


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(UserError, match="no weight of the 'unet-ce' model fits"):
        fast().load_matching_weights(create("unet-ce", 2, 1, base=8, multipliers=(1,), blocks=1, attention=()))
