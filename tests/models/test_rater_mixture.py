"""Models that know their raters: frequencies, names, samples of one rater, and raters of known habits."""

import pytest
import torch

from stochseg.errors import UserError
from stochseg.models import load, save
from stochseg.models.rater_mixture import RaterMixture, draw_raters
from stochseg.types import DatasetInfo
from tests.support.models import fresh, images, labels, lively

INFO = DatasetInfo(num_classes=2, image_channels=1, rater_names=("ana", "ben", "chi"))
MODELS = ("pionono", "rater-confusion", "rater-confusion+level")
every_model = pytest.mark.parametrize("name", MODELS)


# --- frequencies ----------------------------------------------------------------------------------------


def test_probabilities_are_frequencies_and_the_last_place_is_for_raters_without_a_name():
    mixture = RaterMixture(3)
    mixture.observe(torch.tensor([0, 2, 2]))
    mixture.observe(torch.tensor([-1]))
    torch.testing.assert_close(mixture.probabilities, torch.tensor([1, 0, 2, 1]) / 4)


def test_named_raters_are_equally_probable_before_any_training():
    assert RaterMixture(2).probabilities.tolist() == [0.5, 0.5, 0.0]
    assert RaterMixture(0).probabilities.tolist() == [1.0]


def test_draws_invert_the_cumulated_probabilities_and_never_give_a_rater_of_probability_zero():
    mixture = RaterMixture(3)
    mixture.observe(torch.tensor([0, 2, 2, 2]))
    u = (torch.arange(1000) + 0.5) / 1000
    assert torch.bincount(draw_raters(mixture.probabilities, u), minlength=4).tolist() == [250, 0, 750, 0]


# --- names in training and sampling ---------------------------------------------------------------------


def seen(name: str, counts: tuple[int, ...] = (3, 0, 1, 0)):
    """A model of three raters after this many label maps of each, and of nobody's."""
    model = lively(name, info=INFO)
    model.mixture.counts.copy_(torch.tensor(counts))
    return model


@every_model
def test_training_counts_whose_maps_it_draws_and_validation_does_not(name):
    model, x, y = fresh(name, info=INFO), images(3), labels(3, 2, 2)
    index, count, keys = torch.tensor([[2, 0], [2, -1], [-1, 1]]), torch.tensor([1, 1, 1]), [(0, i) for i in range(3)]
    model.train()(x, y, rater_index=index, rater_count=count, keys=keys)
    assert model.mixture.counts.tolist() == [0, 0, 2, 1]
    model.eval()(x, y, rater_index=index, rater_count=count, keys=keys)
    assert model.mixture.counts.sum() == 3


@every_model
def test_the_loss_of_a_rater_trains_only_what_is_theirs(name):
    model, own = lively(name, info=INFO), "gaussians.mean" if name == "pionono" else "matrices"
    model(images(2), labels(2, 1, 2), rater_index=torch.tensor([[1], [1]]))["loss"].backward()
    gradient = model.get_parameter(own).grad.flatten(1).abs().amax(1)
    assert gradient.gt(0).tolist() == [False, True, False, False]


@every_model
def test_mean_of_anyone_is_the_mixture_of_the_raters_means(name):
    """Exact for confusion matrices; Gaussians are made narrow, so that any draw of a rater is the same."""
    model = seen(name)
    if name == "pionono":
        with torch.no_grad():
            model.gaussians.raw.copy_(torch.full((3,), -20.0).diag().expand(4, 3, 3))
    x = images(2)
    anyone = model.sample(x, 64, noise="latin")
    ana, chi = (model.sample(x, 4, rater=rater) for rater in ("ana", "chi"))
    assert not torch.equal(ana.mean, chi.mean)
    torch.testing.assert_close(anyone.mean, 0.75 * ana.mean + 0.25 * chi.mean, atol=1e-5, rtol=0)
    is_ana, is_chi = ((anyone.labels == one.labels[:, :1]).flatten(2).all(2) for one in (ana, chi))
    assert (is_ana | is_chi).all()
    assert (is_ana & ~is_chi).sum(1).tolist() in ([48, 48], [0, 0])  # 0 if both have the same most probable map


@every_model
def test_raters_are_chosen_by_name_or_by_number_among_those_seen_in_training(name):
    model, x = seen(name), images(1)
    assert model.rater_names == ("ana", "chi")
    assert torch.equal(model.sample(x, 2, rater="chi").mean, model.sample(x, 2, rater=1).mean)
    with pytest.raises(UserError, match="unknown rater 'ben'.*0: ana, 1: chi"):
        model.sample(x, 2, rater="ben")
    assert fresh(name, info=INFO).rater_names == INFO.rater_names
    with pytest.raises(UserError, match="does not know its raters apart"):
        fresh(name).sample(x, 2, rater="ana")


@every_model
def test_frequencies_are_saved(name, tmp_path):
    model = seen(name)
    loaded = load(save(model, tmp_path / "model"))
    assert loaded.rater_names == ("ana", "chi")
    assert torch.equal(loaded.sample(images(1), 8).labels, model.sample(images(1), 8).labels)


# --- raters of known habits -----------------------------------------------------------------------------


def discs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of discs with a halo, and the maps of two raters: the disc alone, and the disc with its halo."""
    center = 4 + 8 * torch.rand(n, 2, 1, 1, generator=torch.Generator().manual_seed(seed))
    place = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
    distance = (place - center).square().sum(1).sqrt()
    maps = torch.stack([distance < 2.5, distance < 4.5], 1)
    return maps.float().sum(1, keepdim=True) - 1, maps.long()


def fit(model, steps: int, draw) -> None:
    """Train on batches of (images, one map per image, its rater), at a learning rate of 0.01."""
    model.train()
    groups = [{"params": g["params"], "lr": 0.01 * g.get("lr_factor", 1.0)} for g in model.parameter_groups()]
    optimizer = torch.optim.Adam(groups)
    for step in range(steps):
        x, y, rater = draw(step)
        optimizer.zero_grad()
        model(x, y[:, None], rater_index=rater[:, None], keys=[(step, i) for i in range(len(x))])["loss"].backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["pionono", "rater-confusion+level"])
def test_two_raters_who_never_labeled_the_same_image_are_told_apart(name):
    info = DatasetInfo(num_classes=2, image_channels=1, rater_names=("narrow", "wide"))
    model, everyone = fresh(name, info=info, rater_lr_factor=10.0), torch.arange(8)

    def draw(step):
        x, maps = discs(8, 100 + step)
        return x, maps[everyone, everyone % 2], everyone % 2

    fit(model, 60, draw)
    x, maps = discs(8, 0)
    for place, rater in enumerate(info.rater_names):
        drawn = model.sample(x, 3, rater=rater).labels
        both, either = (drawn * maps[:, place, None]).sum(), (drawn + maps[:, place, None] > 0).sum()
        assert both / either > 0.9


def test_confusion_matrices_are_recovered_from_noisy_labels_alone():
    """One rater misses 30% of the foreground's pixels, the other marks 20% of the background's."""
    info = DatasetInfo(num_classes=2, image_channels=1, rater_names=("blind", "eager"))
    habits = torch.tensor([[[1.0, 0.3], [0.0, 0.7]], [[0.8, 0.0], [0.2, 1.0]]])  # rater, written, truth
    model = fresh("rater-confusion", info=info, rater_lr_factor=5.0, base=4, multipliers=[1])
    everyone = torch.arange(8)

    def draw(step):
        generator = torch.Generator().manual_seed(step)
        truth = (torch.rand(8, 16, 16, generator=generator) < 0.5).long()
        p = habits[everyone % 2, 1][everyone[:, None, None], truth]
        return 2.0 * truth[:, None] - 1, (torch.rand(8, 16, 16, generator=generator) < p).long(), everyone % 2

    fit(model, 120, draw)
    torch.testing.assert_close(model.matrices[:2].detach().softmax(1), habits, atol=0.06, rtol=0)
    x = draw(999)[0]
    with torch.no_grad():
        assert ((model.truth(model.outputs(x))[:, 1] > 0.5) == (x[:, 0] > 0)).float().mean() > 0.99
