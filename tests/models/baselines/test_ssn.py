"""SSN: its low-rank normal and its loss against torch.distributions and brute force."""

import math

import pytest
import torch
from torch.distributions import LowRankMultivariateNormal

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import create
from stochseg.models.baselines.ssn import LowRankNormal, log_mean_likelihood

TINY = {"base": 4, "multipliers": [1, 2], "blocks": 1, "attention": [], "rank": 2, "draws": 6}


def ssn(classes=2, channels=1, **config):
    torch.manual_seed(0)
    return create("ssn", classes, channels, **{**TINY, **config})


def normal(b=2, rank=3, shape=(2, 2, 3), dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    mean, diagonal = torch.randn(2, b, *shape, generator=generator, dtype=dtype)
    return LowRankNormal(mean, diagonal.exp() + 1e-5, torch.randn(b, rank, *shape, generator=generator, dtype=dtype))


def reference(low_rank):
    """The same distributions by torch, over the flattened logits."""
    return LowRankMultivariateNormal(
        low_rank.mean.flatten(1), low_rank.factor.flatten(2).mT, low_rank.diagonal.flatten(1)
    )


# --- the normal -------------------------------------------------------------------------------------------


def test_draws_are_a_linear_map_whose_square_is_the_covariance():
    """Fed with unit vectors for standard normal numbers, the draws are the columns of A; A A^T is the covariance."""
    low_rank = normal()
    k, r = low_rank.mean[0].numel(), low_rank.factor.shape[1]
    unit = torch.eye(r + k, dtype=torch.float64).expand(2, -1, -1)
    columns = low_rank.deviation(unit[..., :r], unit[..., r:].unflatten(2, low_rank.mean.shape[1:])).flatten(2)
    torch.testing.assert_close(columns.mT @ columns, reference(low_rank).covariance_matrix)
    torch.testing.assert_close(
        low_rank.deviation(torch.zeros(2, 1, r).double(), torch.zeros(2, 1, *low_rank.mean.shape[1:]).double()),
        torch.zeros(2, 1, *low_rank.mean.shape[1:]).double(),
    )


def test_draws_have_the_mean_and_covariance_of_torch():
    low_rank, m = normal(shape=(2, 1, 2), dtype=torch.float32), 40_000
    noise = SeededNoise([(0, i) for i in range(2)])
    x = (low_rank.mean[:, None] + low_rank.draw(noise, m)).flatten(2)
    covariance = reference(low_rank).covariance_matrix
    spread = covariance.diagonal(dim1=-2, dim2=-1)
    assert ((x.mean(1) - low_rank.mean.flatten(1)).abs() < 5 * (spread / m).sqrt()).all()
    centered = x - x.mean(1, keepdim=True)
    # var of a sample covariance: (s_ii s_jj + s_ij^2) / m
    error = ((spread[:, :, None] * spread[:, None] + covariance**2) / m).sqrt()
    assert ((centered.mT @ centered / m - covariance).abs() < 5 * error).all()


def test_rows_are_taken_together():
    low_rank, rows = normal(), torch.tensor([1, 0, 1])
    taken, whole = reference(low_rank[rows]), reference(low_rank)
    torch.testing.assert_close(taken.mean, whole.mean[rows])
    torch.testing.assert_close(taken.covariance_matrix, whole.covariance_matrix[rows])


@pytest.mark.parametrize("wrong", [1e200, math.inf, math.nan])
def test_only_the_image_that_cannot_be_factorized_becomes_diagonal(wrong):
    low_rank = normal()
    low_rank.factor[1] *= wrong
    guarded = low_rank.guarded()
    assert torch.equal(guarded.factor[0], low_rank.factor[0])
    assert (guarded.factor[1] == 0).all()
    assert guarded.mean is low_rank.mean
    assert guarded.diagonal is low_rank.diagonal


def test_nearly_dependent_columns_are_kept():
    """Columns alike, variances at their least: float32 cannot factorize this, training makes it often."""
    low_rank = normal(shape=(2, 16, 16), dtype=torch.float32)
    low_rank.factor[:] = 10 * low_rank.factor[:, :1] + 1e-4 * low_rank.factor
    low_rank.diagonal[:] = 1e-5
    capacitance = low_rank._capacitance().float()
    assert torch.linalg.cholesky_ex(capacitance).info.all(), "float32 factorizes it; the test shows nothing"
    assert low_rank.guarded() is low_rank


def test_a_model_whose_factor_explodes_still_has_a_finite_loss_and_gradient():
    model = ssn()
    with torch.no_grad():
        model.factor.weight.fill_(math.inf)
    image, labels = torch.rand(1, 1, 8, 8), torch.randint(2, (1, 1, 8, 8))
    loss = model(image, labels)["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(model.mean.weight.grad).all()
    assert model.sample(image, 2).labels.shape == (1, 2, 8, 8)


# --- the loss ---------------------------------------------------------------------------------------------


def test_log_mean_likelihood_is_the_brute_force_mean_of_products():
    logits, labels = torch.randn(2, 5, 3, 2, 2, dtype=torch.float64), torch.randint(3, (2, 2, 2))
    mask = torch.tensor([[[True, False], [True, True]], [[False, False], [True, True]]])
    for valid in (mask, None):
        for i in range(2):
            likelihoods = []
            for j in range(5):
                product = 1.0
                for r in range(2):
                    for c in range(2):
                        p = logits[i, j, :, r, c].exp() / logits[i, j, :, r, c].exp().sum()
                        if valid is None or valid[i, r, c]:
                            product *= p[labels[i, r, c]].item()
                likelihoods.append(product)
            expected = math.log(sum(likelihoods) / 5)
            assert log_mean_likelihood(logits, labels, valid)[i].item() == pytest.approx(expected, abs=1e-12)


def test_likelihoods_too_small_for_a_float_are_averaged_all_the_same():
    logits = torch.zeros(1, 2, 2, 64, 64)
    logits[:, 1] = torch.tensor([3.0, 0.0])[:, None, None]
    labels = torch.ones(1, 64, 64, dtype=torch.int64)
    worst, best = 4096 * math.log(0.5), 4096 * -math.log1p(math.exp(3))
    assert log_mean_likelihood(logits, labels, None).item() == pytest.approx(max(worst, best) - math.log(2), rel=1e-5)


def test_the_loss_draws_pairs_mirrored_about_the_mean(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "stochseg.models.baselines.ssn.log_mean_likelihood",
        lambda logits, labels, mask: seen.append(logits) or log_mean_likelihood(logits, labels, mask),
    )
    model, image = ssn(), torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        model(image, torch.zeros(2, 1, 8, 8, dtype=torch.int64), keys=[(0,), (1,)])
        mean = model.distribution(image).mean
    (logits,) = seen
    assert logits.shape == (2, 6, 2, 8, 8)
    torch.testing.assert_close((logits[:, :3] + logits[:, 3:]) / 2, mean[:, None].expand(-1, 3, -1, -1, -1))
    deviation = logits[:, :3] - mean[:, None]
    assert not torch.allclose(deviation[:, 0], deviation[:, 1])
    assert not torch.allclose(deviation[0], deviation[1])


def test_the_loss_is_an_estimate_of_the_likelihood_of_the_labels():
    """Many draws come close to the likelihood found by integrating over a grid: one pixel, whose two logits differ by
    a normal number of known mean and variance."""
    model = ssn(draws=4000)
    image, labels = torch.rand(1, 1, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.int64)
    with torch.no_grad():
        loss = model(image, labels, keys=[(0,)])["loss"].item()
        low_rank = model.distribution(image)
    covariance = reference(low_rank).covariance_matrix[0].double()
    mean = (low_rank.mean[0, 1] - low_rank.mean[0, 0]).item()
    spread = (covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]).sqrt()
    z = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weight = (-z.square() / 2).exp()
    p = ((mean + spread * z).sigmoid() * weight).sum() / weight.sum()
    assert loss == pytest.approx(-p.log().item(), abs=0.01)


def test_odd_numbers_of_draws_are_refused():
    with pytest.raises(UserError, match="(?s)draws.*multiple of 2.*got 5"):
        ssn(draws=5)


# --- sampling ---------------------------------------------------------------------------------------------


def test_the_network_runs_once_an_image(monkeypatch):
    model, calls = ssn(), []
    forward = model.unet.forward
    monkeypatch.setattr(model.unet, "forward", lambda x: calls.append(len(x)) or forward(x))
    assert model.sample(torch.rand(2, 1, 8, 8), 5).evaluations == 1
    assert calls == [2]


def test_chunks_change_nothing_and_progress_reaches_its_total():
    image = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    seen = []
    whole = ssn(chunk=64).sample(image, 5)
    parts = ssn(chunk=1).sample(image, 5, progress=lambda *now: seen.append(now))
    assert (whole.labels != parts.labels).float().mean() <= 1e-3
    torch.testing.assert_close(whole.mean, parts.mean, atol=1e-5, rtol=0)
    assert seen == [(i + 1, 3) for i in range(3)]


def test_mean_is_the_average_of_the_samples_probabilities(monkeypatch):
    model, image = ssn(), torch.rand(1, 1, 8, 8)
    low_rank = model.distribution(image).guarded()
    logits = low_rank.mean[:, None] + torch.randn(1, 3, 2, 8, 8)
    rows = iter(logits[0])
    monkeypatch.setattr(
        LowRankNormal, "draw", lambda self, noise, m: torch.stack([next(rows) for _ in self.mean])[:, None] - self.mean
    )
    out = model.sample(image, 3)
    torch.testing.assert_close(out.mean[0], logits[0].softmax(1).mean(0))
    assert torch.equal(out.labels[0], logits[0].argmax(1))


def test_samples_of_any_noise_and_an_unknown_one():
    model, image = ssn(), torch.rand(1, 1, 8, 8)
    assert model.sample(image, 4, noise="latin").labels.shape == (1, 4, 8, 8)
    with pytest.raises(UserError, match="unknown noise 'white'.*known: independent, latin"):
        model.sample(image, 1, noise="white")


def test_two_readings_of_an_image_are_sampled_with_their_frequencies():
    model = ssn(draws=20, rank=3, multipliers=[1])
    image = torch.zeros(10, 1, 8, 8)
    labels = (torch.arange(10) < 3).long()[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 2e-2 * (1 - step / 100)
        optimizer.zero_grad()
        model(image, labels, keys=[(step, i) for i in range(10)])["loss"].backward()
        optimizer.step()
    share = model.sample(image[:1], 300).labels[0].float().mean((1, 2))
    pure = (share < 0.02) | (share > 0.98)
    assert pure.float().mean() > 0.9, "a sample is one reading everywhere, not a mixture of pixels"
    assert 0.2 < (share > 0.5).float().mean() < 0.42
