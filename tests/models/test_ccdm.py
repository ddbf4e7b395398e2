"""CCDM: the pairs of a rater and a time step that it trains on, and sampling."""

import pytest
import torch
from scipy import stats

from stochseg.core import SAMPLERS
from stochseg.errors import UserError
from stochseg.networks import Condition
from tests.support.models import fresh, images, labels, perturb


def ccdm(classes=2, **config):
    return perturb(fresh("ccdm", classes, **{"num_timesteps": 10, **config}), 0.3)


# --- training -----------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """Draw the pairs (raters "b d", time steps "b d") of a loss: rater r labels everything r; the network is a stub."""

    def draw(b, raters, **config):
        model, pairs, encoded, called = fresh("ccdm", max(raters, 2), **config), [], [], []
        q_sample = model.process.q_sample

        def watch(x0, t, *rest):
            pairs.append((x0.flatten(), t))
            return q_sample(x0, t, *rest)

        def encode(image):
            encoded.append(image)
            return Condition((image,), (1, 1))

        def propose(x_t, t, condition):
            called.append((t, condition.tensors[0]))
            return torch.zeros(len(x_t), 1), torch.zeros(len(x_t), 1, model.num_classes, 1, 1, requires_grad=True)

        monkeypatch.setattr(model.process, "q_sample", watch)
        monkeypatch.setattr(model.denoiser, "encode", encode)
        monkeypatch.setattr(model.denoiser, "propose", propose)
        maps = torch.arange(raters)[None, :, None, None].expand(b, -1, 1, 1)
        image = torch.arange(b, dtype=torch.float32).view(b, 1, 1, 1)
        model(image, maps, keys=[(0, i) for i in range(b)])

        draws = model.config.draws
        assert len(encoded) == len(called) == 1, "one encoding and one network call serve all draws"
        assert len(encoded[0]) == b
        t, conditions = called[0]
        assert torch.equal(t, pairs[0][1])
        assert torch.equal(conditions.flatten(), torch.arange(b).repeat_interleave(draws).float())
        return tuple(x.view(b, draws) for x in pairs[0])

    return draw


def test_draws_of_an_image_take_different_raters_and_spread_time_steps(drawn):
    rater, t = drawn(200, 4, draws=4, num_timesteps=100)
    assert torch.equal(rater.sort(1).values, torch.arange(4).expand(200, 4))
    assert torch.equal(((t - 1) // 25).sort(1).values, torch.arange(4).expand(200, 4))


def test_more_draws_than_raters_use_all_raters_equally(drawn):
    rater, _ = drawn(50, 2, draws=6, num_timesteps=12)
    assert ((rater == 0).sum(1) == 3).all()


@pytest.mark.parametrize("draws", [1, 3])
def test_each_draw_is_a_uniform_pair_of_rater_and_time_step(drawn, draws):
    """Chi-square, false-alarm rate 1e-3 for the fixed seed."""
    raters, num_timesteps, b = 3, 10, 3000
    rater, t = drawn(b, raters, draws=draws, num_timesteps=num_timesteps)
    assert t.min() == 1
    assert t.max() == num_timesteps
    for j in range(draws):
        counts = torch.bincount(rater[:, j] * num_timesteps + t[:, j] - 1, minlength=raters * num_timesteps)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_pairs_depend_on_the_key_only(drawn):
    many, few = drawn(30, 4, draws=2), drawn(5, 4, draws=2)
    assert all(torch.equal(a[:5], b) for a, b in zip(many, few, strict=True))


def test_expected_loss_does_not_depend_on_the_number_of_draws():
    image, raters = images(1, 1, 4, 4), labels(1, 4, 2, 4, 4)

    def losses(draws, count):
        model, keys = ccdm(draws=draws, num_timesteps=20), [(draws, k) for k in range(count)]
        with torch.no_grad():
            return torch.stack([model(image, raters, keys=[key])["loss"] for key in keys])

    one, four = losses(1, 250), losses(4, 80)
    error = (one.var() / len(one) + four.var() / len(four)).sqrt()
    assert (one.mean() - four.mean()).abs() < 4 * error


# --- sampling -----------------------------------------------------------------------------------------------


def test_each_image_is_encoded_once(monkeypatch):
    model, sizes = ccdm(), []
    encode = model.denoiser.encode
    monkeypatch.setattr(model.denoiser, "encode", lambda image: sizes.append(len(image)) or encode(image))
    model.sample(images(2, 1, 8, 8), 5)
    assert sizes == [2]


@pytest.mark.parametrize("evaluations", [1, 3, 10])
def test_samples_of_a_perfect_denoiser_are_the_truth(monkeypatch, evaluations):
    model, truth = ccdm(3), labels(1, 1, 3, 8, 8)[0, 0]
    logits = 50.0 * torch.nn.functional.one_hot(truth, 3).permute(2, 0, 1).float()
    monkeypatch.setattr(
        model.denoiser,
        "propose",
        lambda x_t, t, condition: (torch.zeros(len(x_t), 1), logits.expand(len(x_t), 1, -1, -1, -1)),
    )
    out = model.sample(images(1, 1, 8, 8), 4, evaluations=evaluations)
    assert (out.labels == truth).all()
    assert out.evaluations == evaluations


def test_evaluations_default_to_the_config_and_then_to_all_time_steps():
    image = images(1, 1, 8, 8)
    assert ccdm(evaluations=4).sample(image, 1).evaluations == 4
    assert ccdm(evaluations=4).sample(image, 1, evaluations=10).evaluations == 10
    assert ccdm().sample(image, 1).evaluations == 10


@pytest.mark.parametrize("evaluations", [0, -1, 11])
def test_evaluations_below_one_or_above_the_time_steps_are_refused(evaluations):
    with pytest.raises(UserError, match=f"evaluations.*1.*got {evaluations}"):
        ccdm().sample(images(1, 1, 8, 8), 1, evaluations=evaluations)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_draws_label_maps(sampler):
    out = ccdm(3).sample(images(1, 1, 8, 8), 2, evaluations=4, sampler=sampler)
    assert set(out.labels.unique().tolist()) <= {0, 1, 2}
    torch.testing.assert_close(out.mean.sum(1), torch.ones(1, 8, 8))


def test_features_of_the_image_encoder_change_the_logits():
    model = ccdm(encoder="hog", multipliers=[1, 1, 1, 16], base=4, attention=[]).eval()
    condition = model.denoiser.encode(images(1))
    x_t, t = torch.zeros(1, 16, 16, dtype=torch.int64), torch.tensor([5])
    other = Condition((condition.tensors[0], condition.tensors[1] + 1), condition.size)
    assert not torch.allclose(model.denoiser(x_t, t, condition), model.denoiser(x_t, t, other))
    assert model.sample(images(1), 1, evaluations=2).labels.shape == (1, 1, 16, 16)


def test_samples_are_ordinary_tensors():
    """They can be changed in place and used in a computation with gradients."""
    out = ccdm().sample(images(1, 1, 8, 8), 1)
    out.labels[...] = 0
    assert not out.mean.requires_grad
    factor = torch.ones(1, requires_grad=True)
    (out.mean * factor).sum().backward()
    assert factor.grad == pytest.approx(64, rel=1e-5)
