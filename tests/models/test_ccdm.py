"""CCDM: which raters and steps it trains on, and how it samples."""

import pytest
import torch
from scipy import stats

from stochseg.core import SAMPLERS
from stochseg.errors import UserError
from stochseg.models import create
from stochseg.models.raters import pick_raters
from stochseg.networks import Condition

TINY = {"base": 4, "multipliers": [1, 2], "blocks": 1, "attention": []}


def ccdm(classes=2, channels=1, **config):
    torch.manual_seed(0)
    model = create("ccdm", classes, channels, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture
def drawn(monkeypatch):
    """Pairs (raters "b d", steps "b d") that the loss draws: rater r's map is r everywhere; the network is a stub."""

    def draw(b, raters, *, seed=0, **config):
        model, pairs = create("ccdm", max(raters, 2), 1, **TINY, **config), []
        denoiser, q_sample = model.denoiser, model.process.q_sample
        encoded, called = [], []

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
        monkeypatch.setattr(denoiser, "encode", encode)
        monkeypatch.setattr(denoiser, "propose", propose)
        labels = torch.arange(raters)[None, :, None, None].expand(b, -1, 1, 1)
        image = torch.arange(b, dtype=torch.float32).view(b, 1, 1, 1)
        model(image, labels, keys=[(seed, i) for i in range(b)])

        draws = model.config.draws
        assert len(encoded) == len(called) == 1, "one encoding and one network call serve all draws"
        assert len(encoded[0]) == b
        t, conditions = called[0]
        assert torch.equal(t, pairs[0][1])
        assert torch.equal(conditions.flatten(), torch.arange(b).repeat_interleave(draws).float())
        return tuple(x.view(b, draws) for x in pairs[0])

    return draw


def test_draws_of_an_image_take_distinct_raters_and_spread_steps(drawn):
    rater, t = drawn(200, 4, draws=4, num_timesteps=100)
    assert torch.equal(rater.sort(1).values, torch.arange(4).expand(200, 4))
    assert torch.equal(((t - 1) // 25).sort(1).values, torch.arange(4).expand(200, 4))


def test_more_draws_than_raters_use_all_raters_equally(drawn):
    rater, _ = drawn(50, 2, draws=6, num_timesteps=12)
    assert ((rater == 0).sum(1) == 3).all()


@pytest.mark.parametrize("draws", [1, 3])
def test_each_draw_is_marginally_a_uniform_pair_of_rater_and_step(drawn, draws):
    raters, steps, b = 3, 10, 6000
    rater, t = drawn(b, raters, draws=draws, num_timesteps=steps)
    assert t.min() == 1
    assert t.max() == steps
    for j in range(draws):
        counts = torch.bincount((rater[:, j] * steps + t[:, j] - 1), minlength=raters * steps)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_the_pairs_follow_the_key_not_the_place_in_the_batch(drawn):
    many, few = drawn(30, 4, draws=2), drawn(5, 4, draws=2)
    assert all(torch.equal(a[:5], b) for a, b in zip(many, few, strict=True))


def test_several_draws_average_the_same_loss():
    """A draw is a fair estimate, so the mean over many keys is the same with 1 and with 4 draws."""
    image = torch.rand(1, 1, 4, 4) * 2 - 1
    labels = torch.randint(2, (1, 4, 4, 4))

    def losses(draws, keys):
        model = ccdm(draws=draws, num_timesteps=20)
        with torch.no_grad():
            return torch.stack([model(image, labels, keys=[(draws, k)])["loss"] for k in range(keys)])

    one, four = losses(1, 250), losses(4, 80)
    error = (one.var() / len(one) + four.var() / len(four)).sqrt()
    assert (one.mean() - four.mean()).abs() < 4 * error


def test_encodes_once_however_many_samples_and_steps(monkeypatch):
    model = ccdm(num_timesteps=10)
    encode, calls = model.denoiser.encode, []
    monkeypatch.setattr(model.denoiser, "encode", lambda image: calls.append(len(image)) or encode(image))
    model.sample(torch.rand(2, 1, 8, 8), 5)
    assert calls == [2]


def test_a_perfect_denoiser_gives_the_truth(monkeypatch):
    model = ccdm(3, num_timesteps=10)
    truth = torch.randint(3, (8, 8))
    logits = 50.0 * torch.nn.functional.one_hot(truth, 3).permute(2, 0, 1).float()
    monkeypatch.setattr(
        model.denoiser,
        "propose",
        lambda x_t, t, condition: (torch.zeros(len(x_t), 1), logits.expand(len(x_t), 1, -1, -1, -1)),
    )
    for steps in (1, 3, 10):
        out = model.sample(torch.rand(1, 1, 8, 8), 4, evaluations=steps)
        assert (out.labels == truth).all()
        assert out.evaluations == steps


def test_chunks_change_nothing():
    image = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    whole, parts = (ccdm(num_timesteps=10, chunk=chunk).sample(image, 5, evaluations=3) for chunk in (64, 1))
    assert (whole.labels != parts.labels).float().mean() <= 1e-3
    torch.testing.assert_close(whole.mean, parts.mean, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("chunk", "total"), [(64, 3), (1, 9)])
def test_progress_reaches_its_total(chunk, total):
    seen = []
    model = ccdm(num_timesteps=10, chunk=chunk)
    model.sample(torch.rand(2, 1, 64, 64), 5, evaluations=3, progress=lambda *now: seen.append(now))
    assert seen == [(i + 1, total) for i in range(total)]


def test_steps_and_sampler_default_to_the_config():
    model = ccdm(num_timesteps=10, steps=4)
    image = torch.rand(1, 1, 8, 8)
    assert model.sample(image, 1).evaluations == 4
    assert model.sample(image, 1, evaluations=10).evaluations == 10
    assert ccdm(num_timesteps=10).sample(image, 1).evaluations == 10


@pytest.mark.parametrize("evaluations", [0, -1, 11])
def test_impossible_numbers_of_evaluations_are_refused(evaluations):
    with pytest.raises(UserError, match=f"evaluations.*1.*got {evaluations}"):
        ccdm(num_timesteps=10).sample(torch.rand(1, 1, 8, 8), 1, evaluations=evaluations)


def test_unknown_sampler_and_grid_are_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown sampler 'euler'.*known: .*ancestral"):
        ccdm(num_timesteps=10).sample(torch.rand(1, 1, 8, 8), 1, sampler="euler")
    with pytest.raises(UserError, match=r"unknown grid 'odd'.*known: .*even"):
        ccdm(num_timesteps=10, grid="odd").sample(torch.rand(1, 1, 8, 8), 1)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_can_be_asked_for(sampler):
    out = ccdm(3, num_timesteps=10).sample(torch.rand(1, 1, 8, 8), 2, evaluations=4, sampler=sampler)
    assert out.labels.max() < 3
    torch.testing.assert_close(out.mean.sum(1), torch.ones(1, 8, 8))


def test_image_features_matter():
    """With an encoder, two images that differ only in what the encoder sees at 1/8 are told apart."""
    model = ccdm(num_timesteps=10, encoder="hog", multipliers=[1, 1, 1, 16]).eval()
    image = torch.rand(1, 1, 16, 16)
    condition = model.denoiser.encode(image)
    x_t, t = torch.zeros(1, 16, 16, dtype=torch.int64), torch.tensor([5])
    other = Condition((condition.tensors[0], condition.tensors[1] + 1), condition.size)
    assert not torch.allclose(model.denoiser(x_t, t, condition), model.denoiser(x_t, t, other))
    assert model.sample(image, 1, evaluations=2).labels.shape == (1, 1, 16, 16)


@pytest.mark.parametrize("wrong", [{"sampler": "nope"}, {"grid": "nope"}, {"num_timesteps": 5, "steps": 6}])
def test_sampling_options_are_checked_when_the_model_is_built(wrong):
    with pytest.raises(UserError):
        create("ccdm", 2, 1, **{"base": 8, "multipliers": (1, 2), **wrong})


def test_raters_are_drawn_evenly_whatever_their_number():
    """Chi-square over 6000 draws for images of 2 and 3 raters; false-alarm rate 1e-6."""
    u = torch.rand(6000, generator=torch.Generator().manual_seed(0))
    for count in (2, 3):
        picked = pick_raters(u, torch.full((6000,), count))[:, 0]
        assert stats.chisquare(torch.bincount(picked, minlength=count)).pvalue > 1e-6
    several = pick_raters(u, torch.full((6000,), 3), draws=3)
    assert (several.sort(1).values == torch.arange(3)).all(), "three draws of three raters take each once"


def test_samples_are_ordinary_tensors():
    out = create("ccdm", 2, 1, base=8, multipliers=(1, 2), num_timesteps=3).sample(torch.zeros(1, 1, 8, 8), 1)
    out.labels[...] = 0
    assert not out.mean.requires_grad
    (out.mean * torch.ones(1, requires_grad=True)).sum().backward()
