"""Flow-SSN: its solvers with exact networks, the points it trains on, and sampling."""

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from stochseg.models import create
from stochseg.models.baselines.flow_ssn import SOLVERS, TIMES, euler, start
from tests.support.models import batch_sizes, images, labels, lively

FALSE_ALARM = 1e-6


def no_report(i):
    """Report progress to nobody."""


def one_hot(maps, classes):
    return F.one_hot(maps, classes).movedim(-1, -3).double()


def bayes(modes, probabilities, mean):
    """The exact E[x1 | y_t] for label maps `modes` "m l h w" with their probabilities and starts from N(mean, 1)."""

    def predict(y, t):
        centers = (1 - t) * mean + t * modes
        log_likelihood = -(y[:, None] - centers).square().flatten(2).sum(2) / (2 * (1 - t) ** 2)
        return torch.einsum("nm,mlhw->nlhw", (log_likelihood + probabilities.log()).softmax(1), modes)

    return predict


# --- the flow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", sorted(SOLVERS))
@pytest.mark.parametrize("grid", sorted(TIMES))
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_flow_of_a_network_that_knows_the_labels_is_a_straight_line(solver, grid, steps):
    truth = one_hot(torch.randint(3, (4, 5, 5)), 3)
    u, times, seen = torch.randn(4, 3, 5, 5, dtype=torch.float64), TIMES[grid](steps), []
    end = SOLVERS[solver](lambda y, t: seen.append((y, t)) or truth, u, times, no_report)
    torch.testing.assert_close(end, truth, rtol=0, atol=1e-12)
    assert [t for _, t in seen] == list(times[:-1])
    assert (times[0], times[-1]) == (0.0, 1.0)
    for y, t in seen:
        torch.testing.assert_close(y, (1 - t) * u + t * truth, rtol=0, atol=1e-12)


def test_euler_ends_exactly_at_the_last_prediction():
    p = torch.rand(8, 3, 4, 4, dtype=torch.float32).softmax(1)
    assert torch.equal(euler(lambda y, t: p, 100 * torch.randn(8, 3, 4, 4), TIMES["even"](7), no_report), p)


def test_released_rule_moves_by_the_prediction_minus_the_start():
    u = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    predictions, times = torch.rand(4, 2, 3, 2, 2, dtype=torch.float64).softmax(2), TIMES["early"](4)
    states, calls = [], iter(predictions)
    end = start(lambda y, t: states.append(y) or next(calls), u, times, no_report)
    y = u
    for i, p in enumerate(predictions):
        torch.testing.assert_close(states[i], y)
        y = y + (times[i + 1] - times[i]) * (p - u)
    torch.testing.assert_close(end, y)


def two_modes(size):
    """One-hot label maps of all 0 and all 1, and their probabilities 0.7 and 0.3."""
    modes = torch.stack([torch.zeros(size, size), torch.ones(size, size)]).long()
    return one_hot(modes, 2), torch.tensor([0.7, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 4])
def test_exact_network_draws_two_readings_with_their_frequencies(size):
    modes, probabilities = two_modes(size)
    mean, n = torch.randn(2, size, size, dtype=torch.float64), 2000
    u = mean + torch.randn(n, 2, size, size, dtype=torch.float64)
    maps = euler(bayes(modes, probabilities, mean), u, TIMES["early"](100), no_report).argmax(1).flatten(1)
    assert (maps == maps[:, :1]).all(), "every sample is one of the two readings"
    assert stats.binomtest(int(maps[:, 0].sum()), n, 0.3).pvalue > FALSE_ALARM


def test_flow_has_the_marginals_of_the_lines_at_every_time():
    """States of the solver at t are distributed as (1 - t) u + t x1 with a random x1 (Kolmogorov–Smirnov test). The
    rule of the released code fails this."""
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

        solver(watch, u, times, no_report)
        return out

    assert min(p_values(euler)) > FALSE_ALARM
    assert min(p_values(start)) < FALSE_ALARM


def test_early_grid_finds_the_rarer_of_two_large_readings():
    modes, probabilities = two_modes(24)
    mean = torch.zeros(2, 24, 24, dtype=torch.float64)
    u = torch.randn(400, 2, 24, 24, dtype=torch.float64)
    even, early = (
        euler(bayes(modes, probabilities, mean), u, TIMES[grid](10), no_report)[:, 1, 0, 0].round().mean()
        for grid in TIMES
    )
    assert even < 0.22
    assert 0.22 < early < 0.33


# --- training ---------------------------------------------------------------------------------------------


@pytest.fixture
def trained_on(monkeypatch):
    """Compute the loss and record the input of the flow's network: (y_t, t, loss)."""

    def watch(model, *inputs, **options):
        seen, logits = [], model.logits
        monkeypatch.setattr(model, "logits", lambda y, t: seen.append((y, t)) or logits(y, t))
        with torch.no_grad():
            loss = model(*inputs, **options)["loss"]
        return *seen[0], loss

    return watch


def test_network_trains_on_points_of_the_line_from_noise_to_labels(trained_on):
    """The noise found by solving y_t = (1 - t)(mean + spread e) + t x1 for e is standard normal."""
    model = lively("flow-ssn", 3, spread=2.0)
    image, raters = images(40, 1, 8, 8), labels(40, 1, 3, 8, 8)
    y, t, _ = trained_on(model, image, raters, keys=[(i,) for i in range(40)])
    with torch.no_grad():
        mean = model.start_mean(image)
    e = ((y - t[:, None, None, None] * one_hot(raters[:, 0], 3).float()) / (1 - t)[:, None, None, None] - mean) / 2
    assert stats.kstest(e.flatten().numpy(), "norm").pvalue > FALSE_ALARM
    assert stats.kstest(t.numpy(), "uniform").pvalue > FALSE_ALARM


def test_draws_of_an_image_take_different_raters_and_spread_times(trained_on):
    model = lively("flow-ssn", 4, draws=4)
    raters = torch.arange(4)[None, :, None, None].expand(5, 4, 8, 8).contiguous()
    calls = batch_sizes(model.image_unet)
    y, t, _ = trained_on(model, images(5, 1, 8, 8), raters, keys=[(i,) for i in range(5)])
    assert calls == [5], "one pass of the image network serves all draws"
    assert len(y) == 20
    assert torch.equal((4 * t.view(5, 4)).long().sort(1).values, torch.arange(4).expand(5, 4))


def test_network_reads_no_void_label(trained_on):
    model, image, keys = lively("flow-ssn", 3), images(1, 1, 8, 8), [(0,)]
    mask = torch.rand(1, 1, 8, 8) < 0.5
    shown = [trained_on(model, image, torch.full((1, 1, 8, 8), k), mask, keys)[0] for k in range(3)]
    assert torch.equal(shown[0][:, :, ~mask[0, 0]], shown[1][:, :, ~mask[0, 0]])
    assert not torch.equal(shown[0], shown[1])


def test_loss_is_the_cross_entropy_at_the_drawn_points(trained_on):
    model, raters = lively("flow-ssn", 3), labels(2, 1, 3, 8, 8)
    mask = torch.rand(2, 1, 8, 8) < 0.5
    y, t, loss = trained_on(model, images(2, 1, 8, 8), raters, mask, [(0,), (1,)])
    with torch.no_grad():
        log_p = torch.log_softmax(model.flow_unet(y, 1000 * t), 1)
    expected = -log_p.gather(1, raters)[mask].sum() / mask.numel()
    torch.testing.assert_close(loss, expected)


# --- sampling ---------------------------------------------------------------------------------------------


def test_image_network_runs_once_per_image_and_flow_network_once_per_step():
    model = lively("flow-ssn")
    image_calls, flow_calls = batch_sizes(model.image_unet), batch_sizes(model.flow_unet)
    assert model.sample(images(2, 1, 8, 8), 5, evaluations=3).evaluations == 3
    assert (image_calls, flow_calls) == ([2], [10, 10, 10])
    assert model.sample(images(1, 1, 8, 8), 1).evaluations == 10


def test_partial_options_of_a_network_keep_its_other_defaults():
    config = create("flow-ssn", flow_unet={"base": 8}).config
    assert config.flow_unet.multipliers == (1, 1, 1)
    assert config.image_unet.multipliers == (1, 2, 4, 8)
