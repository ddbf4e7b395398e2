"""ccdm-fast conditioned on raters: whose hand a sample is, between whose, and a new one from a few maps."""

import pytest
import torch

import stochseg
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.models import SamplingOptions, fit_rater, load, save
from stochseg.models.raters import Target
from stochseg.types import Batch, DatasetInfo, Example
from tests.support.models import images, labels, lively

INFO = DatasetInfo(num_classes=2, image_channels=1, rater_names=("ana", "ben"))
LARGE = {"evaluations": 2, "noise": "independent"}


def conditioned(names=("ana", "ben"), **config):
    info = INFO.model_copy(update={"rater_names": tuple(names)})
    return lively("ccdm-fast+mixture", info=info, rater_conditioning=True, **config)


def same(a, b):
    return torch.equal(a.labels, b.labels) and torch.equal(a.mean, b.mean)


def test_each_rater_and_anyone_draw_from_another_distribution():
    model, x = conditioned(), images(1)
    anyone, ana, ben = (model.sample(x, 4, rater=rater) for rater in (None, "ana", "ben"))
    assert not same(anyone, ana)
    assert not same(ana, ben)
    assert same(ana, model.sample(x, 4, rater=0))
    assert same(ana, model.sample(x, 4, rater="ana", guidance=1))
    assert same(anyone, model.sample(x, 4)), "drawing as a rater leaves the model as it was"


def test_hands_are_learned_before_denoising_starts():
    model = conditioned(draws=2, denoise_from=0.5).train()
    model.training_progress = 0.0
    index = torch.tensor([[0, 1]] * 3)
    loss = model(images(3), labels(3, 2, 2), keys=[(0,), (1,), (2,)], rater_index=index)["loss"]
    loss.backward()
    assert model.hands.grad.abs().sum() > 0


def test_guidance_interpolates_logits_and_log_weights():
    model, x_t, t = conditioned(), labels(1, 3, 2)[0], torch.tensor([250, 9, 1])

    def propose(**chosen):
        tower = model.as_rater("ben", **chosen).denoiser if chosen else model.denoiser
        return tower.propose(x_t, t, tower.encode(images(3)))

    (any_weight, any_logits), (weight, logits), (between_weight, between) = (
        propose(),
        propose(guidance=1.0),
        propose(guidance=0.3),
    )
    torch.testing.assert_close(between, any_logits + 0.3 * (logits - any_logits))
    expected = torch.log_softmax(any_weight + 0.3 * (weight - any_weight), 1)
    torch.testing.assert_close(between_weight, expected)
    torch.testing.assert_close(propose(guidance=0.0)[1], any_logits)


def test_windows_of_a_large_image_have_the_same_hand():
    model, x = conditioned(), images(1, h=80, w=48)
    tiled = model.tiled(64, 16)
    whole, parts = (each.sample(x, 2, rater="ben", guidance=0.5, **LARGE) for each in (model, tiled))
    assert (whole.labels == parts.labels).float().mean() > 0.9
    assert not same(parts, tiled.sample(x, 2, **LARGE))


def test_raters_are_saved_with_the_model(tmp_path):
    model = conditioned()
    again = load(save(model, tmp_path / "model"))
    assert again.rater_names == ("ana", "ben")
    assert same(model.sample(images(1), 2, rater="ben"), again.sample(images(1), 2, rater="ben"))


def test_raters_keep_their_hands_by_name_when_training_starts_from_a_model():
    source, model = conditioned(), conditioned(("ben", "chi", "ana"))
    chi = model.hands[1].clone()
    model.load_matching_weights(source)
    assert torch.equal(model.hands, torch.stack([source.hands[1], chi, source.hands[0]]))


def test_names_are_dropped_in_a_share_of_the_training_draws():
    model = conditioned(draws=50, rater_dropout=0.3)
    keys, rater = [(1, i) for i in range(40)], torch.arange(2000) % 3 - 1
    condition = model.denoiser.encode(images(1))[torch.zeros(2000, dtype=torch.int64)]

    def named():
        vectors = model._for_raters(condition, Target(labels(1, 1, 2)[0], None, rater), keys).tensors[-1]
        assert not vectors[rater < 0].any(), "an unknown rater is anyone"
        return vectors.any(1)[rater >= 0].float().mean()

    assert named() == 1
    model.train()
    assert abs(named() - 0.7) < 5 * (0.3 * 0.7 / 1333) ** 0.5


def test_models_without_names_or_data_without_raters_are_refused():
    with pytest.raises(UserError, match="does not name its raters"):
        stochseg.create("ccdm-fast", rater_conditioning=True)
    with pytest.raises(UserError, match="0: ana, 1: ben"):
        conditioned().sample(images(1), 1, rater="dan")
    with pytest.raises(UserError, match="choose one with rater=NAME"):
        conditioned().sample(images(1), 1, guidance=0.5)


# --- raters of known habits -------------------------------------------------------------------------------

MAPS = torch.zeros(3, 8, 8, dtype=torch.int64)
MAPS[0, 3:5, 3:5] = MAPS[1, 1:7, 1:7] = MAPS[2, 1:7, 1:7] = 1
NAMES = ("core", "halo", "new")


def drawn_by(*raters):
    return Example(torch.zeros(1, 8, 8), MAPS[list(raters)], "x", rater_names=tuple(NAMES[i] for i in raters))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    info = INFO.model_copy(update={"rater_names": NAMES[:2]})
    shape = {"tower": [8, 16], "light": [16, 16], "tower_blocks": 1, "components": 2, "anneal": 20, "evaluations": 3}
    model = stochseg.create("ccdm-fast", info=info, rater_conditioning=True, rater_dropout=0.4, **shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    batch = Batch.collate([drawn_by(0, 1)] * 4, rater_names=info.rater_names)
    for step in range(60):
        optimizer.zero_grad()
        keys = [(step, i) for i in range(4)]
        model(batch.image, batch.raters, keys=keys, rater_index=batch.rater_index)["loss"].backward()
        optimizer.step()
    return model.eval()


def halo_share(model, rater):
    found = model.sample(torch.zeros(1, 1, 8, 8), 40, rater=rater, noise="independent").labels[0]
    core, halo = ((found == MAPS[i]).all((-2, -1)).float().mean().item() for i in (0, 1))
    assert core + halo > 0.9
    return halo


def test_each_hand_draws_its_own_map_and_anyone_both(trained):
    assert halo_share(trained, "core") < 0.1
    assert halo_share(trained, "halo") > 0.9
    assert 0.15 < halo_share(trained, None) < 0.85


def test_a_new_rater_is_one_vector_and_nothing_else(trained):
    before = {key: value.clone() for key, value in trained.state_dict().items()}
    fitted = fit_rater(trained, [drawn_by(0, 2)], "new", steps=60)
    assert fitted.rater_names == NAMES
    assert halo_share(fitted, "new") > 0.9
    after = fitted.state_dict()
    assert torch.equal(after.pop("hands")[:2], before["hands"])
    assert all(torch.equal(after[key], trained.state_dict()[key]) for key in after)
    assert all(torch.equal(before[key], value) for key, value in trained.state_dict().items())
    assert all(p.requires_grad for p in fitted.parameters())


def test_fitting_a_rater_says_what_is_missing(trained):
    with pytest.raises(UserError, match="knows a rater 'halo'"):
        fit_rater(trained, [drawn_by(1)], "halo")
    with pytest.raises(UserError, match="expected label maps of 'new', got none"):
        fit_rater(trained, [], "new")
    with pytest.raises(UserError, match="expected label maps of 'other', got none"):
        fit_rater(trained, [drawn_by(0, 1)], "other")  # maps of named others are not theirs
    with pytest.raises(UserError, match="rater_conditioning=true"):
        fit_rater(stochseg.create("ccdm-fast", tower=[8], light=[8]), [drawn_by(2)], "new")


# --- data of known raters ---------------------------------------------------------------------------------


def test_habits_change_the_odds_of_the_halo_alone():
    plain, data = (Phantoms("val", size=16, count=3, **kind) for kind in ({}, {"habits": (-2.0, 0.0, 2.0)}))
    assert data.info.rater_names == data[0].rater_names == ("rater1", "rater2", "rater3")
    for i in range(3):
        (nothing, core, halo), own = plain.truth(i).probabilities, data.truth(i, "rater3").probabilities
        torch.testing.assert_close(own[0], nothing)
        torch.testing.assert_close((own[2] / own[1]).log(), (halo / core).log() + 2)
        torch.testing.assert_close(data.truth(i, "rater2").probabilities, plain.truth(i).probabilities)
        parts = [data.truth(i, name).probabilities for name in data.info.rater_names]
        torch.testing.assert_close(data.truth(i).probabilities, torch.stack(parts).mean(0))


def test_evaluation_of_one_hand_uses_the_maps_and_the_truth_of_that_rater():
    data = Phantoms("val", size=16, count=4, habits=(-9.0, 9.0))
    model = conditioned(data.info.rater_names)
    result = evaluate(model, data, options=SamplingOptions(n=2, rater="rater2"))
    truth = torch.stack([data.truth(i, "rater2").probabilities for i in range(4)])
    torch.testing.assert_close(torch.from_numpy(result.modes.truth), truth)
    assert all(len(example.raters) == 1 for example, _ in result.kept)
