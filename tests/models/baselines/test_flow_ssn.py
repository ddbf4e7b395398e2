"""Flow-SSN: its flow with networks that are perfect, what it trains on, and how it samples."""

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from stochseg.errors import UserError
from stochseg.models import create
from stochseg.models.baselines.flow_ssn import SOLVERS, TIMES, euler, start

UNET = {"base": 8, "multipliers": [1, 2], "blocks": 1}
TINY = {"image_unet": UNET, "flow_unet": UNET}
FALSE_ALARM = 1e-6


def flow_ssn(classes=2, channels=1, **config):
    torch.manual_seed(0)
    model = create("flow-ssn", classes, channels, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def quiet(i):
    """A report to nobody."""


def one_hot(labels, classes):
    return F.one_hot(labels, classes).movedim(-1, -3).double()


def bayes(modes, probabilities, mean):
    """The exact E[x1 | y_t] of label maps `modes` "m l h w" with their probabilities, from starts N(mean, 1)."""

    def predict(y, t):
        centers = (1 - t) * mean + t * modes
        log_likelihood = -(y[:, None] - centers).square().flatten(2).sum(2) / (2 * (1 - t) ** 2)
        return torch.einsum("nm,mlhw->nlhw", (log_likelihood + probabilities.log()).softmax(1), modes)

    return predict


# --- the flow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", sorted(SOLVERS))
@pytest.mark.parametrize("grid", sorted(TIMES))
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_network_that_knows_the_labels_is_followed_along_a_straight_line(solver, grid, steps):
    truth = one_hot(torch.randint(3, (4, 5, 5)), 3)
    u, times, seen = torch.randn(4, 3, 5, 5, dtype=torch.float64), TIMES[grid](steps), []
    end = SOLVERS[solver](lambda y, t: seen.append((y, t)) or truth, u, times, quiet)
    torch.testing.assert_close(end, truth, rtol=0, atol=1e-12)
    assert [t for _, t in seen] == list(times[:-1])
    assert (times[0], times[-1]) == (0.0, 1.0)
    for y, t in seen:
        torch.testing.assert_close(y, (1 - t) * u + t * truth, rtol=0, atol=1e-12)


def test_euler_ends_at_the_last_prediction_to_the_bit():
    p = torch.rand(8, 3, 4, 4, dtype=torch.float32).softmax(1)
    assert torch.equal(euler(lambda y, t: p, 100 * torch.randn(8, 3, 4, 4), TIMES["even"](7), quiet), p)


def test_the_released_rule_moves_by_the_prediction_less_the_start():
    u = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    predictions, times = torch.rand(4, 2, 3, 2, 2, dtype=torch.float64).softmax(2), TIMES["early"](4)
    states, calls = [], iter(predictions)
    end = start(lambda y, t: states.append(y) or next(calls), u, times, quiet)
    y = u
    for i, p in enumerate(predictions):
        torch.testing.assert_close(states[i], y)
        y = y + (times[i + 1] - times[i]) * (p - u)
    torch.testing.assert_close(end, y)


def two_modes(size, share=0.3):
    modes = torch.stack([torch.zeros(size, size), torch.ones(size, size)]).long()
    return one_hot(modes, 2), torch.tensor([1 - share, share], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 4])
def test_the_exact_network_makes_the_two_readings_with_their_frequencies(size):
    modes, probabilities = two_modes(size)
    mean, n = torch.randn(2, size, size, dtype=torch.float64), 2000
    u = mean + torch.randn(n, 2, size, size, dtype=torch.float64)
    maps = euler(bayes(modes, probabilities, mean), u, TIMES["early"](100), quiet).argmax(1).flatten(1)
    assert (maps == maps[:, :1]).all(), "every sample is one of the two readings"
    assert stats.binomtest(int(maps[:, 0].sum()), n, 0.3).pvalue > FALSE_ALARM


def test_between_start_and_end_the_flow_has_the_marginals_of_the_lines():
    """At every t the states of the solver are distributed as (1 - t) u + t x1 with x1 drawn at random: Kolmogorov and
    Smirnov cannot tell them apart. The rule of the released code fails this."""
    modes, probabilities = two_modes(1)
    n = 3000
    u = torch.randn(n, 2, 1, 1, dtype=torch.float64)
    x1 = modes[torch.multinomial(probabilities, n, replacement=True)]
    exact, times = bayes(modes, probabilities, torch.zeros(2, 1, 1).double()), TIMES["even"](200)

    def p_values(solver):
        out, wanted = [], {40: 0.2, 100: 0.5, 160: 0.8}

        def watch(y, t):
            i = round(200 * t)
            if i in wanted:
                other = (1 - t) * torch.randn(n, 2, 1, 1, dtype=torch.float64) + t * x1
                difference = [(z[:, 1] - z[:, 0]).flatten().numpy() for z in (y, other)]
                out.append(stats.ks_2samp(*difference).pvalue)
            return exact(y, t)

        solver(watch, u, times, quiet)
        return out

    assert min(p_values(euler)) > FALSE_ALARM
    assert min(p_values(start)) < FALSE_ALARM


def test_early_steps_find_the_rarer_of_two_large_readings():
    modes, probabilities = two_modes(24)
    mean = torch.zeros(2, 24, 24, dtype=torch.float64)
    u = torch.randn(400, 2, 24, 24, dtype=torch.float64)
    even, early = (
        euler(bayes(modes, probabilities, mean), u, TIMES[grid](10), quiet)[:, 1, 0, 0].round().mean() for grid in TIMES
    )
    assert even < 0.22
    assert 0.22 < early < 0.33


# --- training ---------------------------------------------------------------------------------------------


@pytest.fixture
def trained_on(monkeypatch):
    """What the loss shows the flow's network: (y_t, t), with the mean of the starts."""

    def watch(model, *inputs, **options):
        seen, logits = [], model.logits
        monkeypatch.setattr(model, "logits", lambda y, t: seen.append((y, t)) or logits(y, t))
        with torch.no_grad():
            loss = model(*inputs, **options)["loss"]
        return *seen[0], loss

    return watch


def test_the_network_is_shown_points_of_the_line_from_noise_to_labels(trained_on):
    """The noise found by solving y_t = (1 - t)(mean + spread e) + t x1 for e is standard normal."""
    model = flow_ssn(3, spread=2.0)
    image, labels = torch.rand(40, 1, 8, 8), torch.randint(3, (40, 1, 8, 8))
    y, t, _ = trained_on(model, image, labels, keys=[(i,) for i in range(40)])
    with torch.no_grad():
        mean = model.start_mean(image)
    e = ((y - t[:, None, None, None] * one_hot(labels[:, 0], 3).float()) / (1 - t)[:, None, None, None] - mean) / 2
    assert stats.kstest(e.flatten().numpy(), "norm").pvalue > FALSE_ALARM
    assert stats.kstest(t.numpy(), "uniform").pvalue > FALSE_ALARM


def test_several_draws_take_distinct_raters_and_spread_times(trained_on):
    model = flow_ssn(4, draws=4)
    labels = torch.arange(4)[None, :, None, None].expand(5, 4, 8, 8).contiguous()
    calls = []
    model.image_unet.register_forward_hook(lambda *_: calls.append(1))
    y, t, _ = trained_on(model, torch.rand(5, 1, 8, 8), labels, keys=[(i,) for i in range(5)])
    assert calls == [1], "one reading of the image serves all draws"
    assert len(y) == 20
    assert torch.equal((4 * t.view(5, 4)).long().sort(1).values, torch.arange(4).expand(5, 4))


def test_the_network_never_reads_a_label_under_the_mask(trained_on):
    model, image, keys = flow_ssn(3), torch.rand(1, 1, 8, 8), [(0,)]
    mask = torch.rand(1, 1, 8, 8) < 0.5
    shown = [trained_on(model, image, torch.full((1, 1, 8, 8), k), mask, keys)[0] for k in range(3)]
    assert torch.equal(shown[0][:, :, ~mask[0, 0]], shown[1][:, :, ~mask[0, 0]])
    assert not torch.equal(shown[0], shown[1])


def test_the_loss_is_the_cross_entropy_at_the_shown_points(trained_on):
    model, labels = flow_ssn(3), torch.randint(3, (2, 1, 8, 8))
    mask = torch.rand(2, 1, 8, 8) < 0.5
    y, t, loss = trained_on(model, torch.rand(2, 1, 8, 8), labels, mask, [(0,), (1,)])
    with torch.no_grad():
        log_p = torch.log_softmax(model.flow_unet(y, 1000 * t), 1)
    expected = -log_p.gather(1, labels)[mask].sum() / mask.numel()
    torch.testing.assert_close(loss, expected)


# --- sampling ---------------------------------------------------------------------------------------------


def test_the_image_is_read_once_and_the_flow_runs_a_pass_a_step():
    model, passes = flow_ssn(), {"image": [], "flow": []}
    model.image_unet.register_forward_hook(lambda *call: passes["image"].append(len(call[1][0])))
    model.flow_unet.register_forward_hook(lambda *call: passes["flow"].append(len(call[1][0])))
    out = model.sample(torch.rand(2, 1, 8, 8), 5, evaluations=3)
    assert passes == {"image": [2], "flow": [10, 10, 10]}
    assert out.evaluations == 3
    assert model.sample(torch.rand(1, 1, 8, 8), 1).evaluations == 10


@pytest.mark.parametrize("sampler", sorted(SOLVERS))
def test_chunks_change_nothing_and_progress_reaches_its_total(sampler):
    image = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    seen = []
    whole = flow_ssn(chunk=64, sampler=sampler).sample(image, 5, evaluations=2)
    parts = flow_ssn(chunk=1).sample(image, 5, evaluations=2, sampler=sampler, progress=lambda *now: seen.append(now))
    assert (whole.labels != parts.labels).float().mean() <= 1e-3
    torch.testing.assert_close(whole.mean, parts.mean, atol=1e-3, rtol=0)
    assert seen == [(i + 1, 6) for i in range(6)]


def test_wrong_options_are_answered_with_the_known_ones():
    model, image = flow_ssn(), torch.rand(1, 1, 8, 8)
    with pytest.raises(UserError, match="unknown sampler 'sticky'; known: euler, start"):
        model.sample(image, 1, sampler="sticky")
    with pytest.raises(UserError, match="unknown grid 'odd'; known: early, even"):
        model.sample(image, 1, grid="odd")
    with pytest.raises(UserError, match="evaluations.*1.*got 0"):
        model.sample(image, 1, evaluations=0)
    with pytest.raises(UserError, match="unknown sampler 'nope'"):
        flow_ssn(sampler="nope")


def test_a_change_of_one_network_keeps_its_other_defaults():
    config = create("flow-ssn", 2, 1, flow_unet={"base": 8}).config
    assert config.flow_unet.multipliers == (1, 1, 1)
    assert config.image_unet.multipliers == (1, 2, 4, 8)


def test_two_readings_of_an_image_are_sampled_with_their_frequencies():
    torch.manual_seed(0)
    model = create("flow-ssn", 2, 1, image_unet={"base": 4, "multipliers": [1]}, flow_unet=UNET, draws=4)
    image = torch.zeros(10, 1, 4, 4)
    labels = (torch.arange(10) < 3).long()[:, None, None, None].expand(-1, 1, 4, 4).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 2e-2 * (1 - step / 100)
        optimizer.zero_grad()
        model(image, labels, keys=[(step, i) for i in range(10)])["loss"].backward()
        optimizer.step()
    share = model.sample(image[:1], 200, evaluations=20).labels[0].float().mean((1, 2))
    assert ((share < 0.02) | (share > 0.98)).float().mean() > 0.9, "a sample is one reading, not a mixture of pixels"
    assert 0.18 < (share > 0.5).float().mean() < 0.42
