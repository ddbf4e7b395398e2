"""SSN: its low-rank normal distribution and its loss against torch.distributions and brute force."""

import math

import pytest
import torch
from torch.distributions import LowRankMultivariateNormal

from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.models import load, save
from stochseg.models.baselines.ssn import LowRankNormal, above_lowest, log_mean_likelihoods
from tests.support.models import batch_sizes, fresh, images, labels


def normal(b=2, rank=3, shape=(2, 2, 3), dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    mean, diagonal = torch.randn(2, b, *shape, generator=generator, dtype=dtype)
    return LowRankNormal(mean, diagonal.exp() + 1e-5, torch.randn(b, rank, *shape, generator=generator, dtype=dtype))


def reference(low_rank):
    """The same distributions in torch, over the flattened logits."""
    return LowRankMultivariateNormal(
        low_rank.mean.flatten(1), low_rank.factor.flatten(2).mT, low_rank.diagonal.flatten(1)
    )


# --- the distribution -------------------------------------------------------------------------------------------


def test_square_of_the_linear_map_of_draws_is_the_covariance():
    """Unit vectors in place of standard normal numbers give the columns of A, and A A^T is the covariance."""
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


def test_rows_are_selected_in_all_parts():
    low_rank, rows = normal(), torch.tensor([1, 0, 1])
    selected, whole = reference(low_rank[rows]), reference(low_rank)
    torch.testing.assert_close(selected.mean, whole.mean[rows])
    torch.testing.assert_close(selected.covariance_matrix, whole.covariance_matrix[rows])


@pytest.mark.parametrize("wrong", [1e200, math.inf, math.nan])
def test_only_images_that_cannot_be_factorized_become_diagonal(wrong):
    low_rank = normal()
    low_rank.factor[1] *= wrong
    guarded = low_rank.guarded()
    assert torch.equal(guarded.factor[0], low_rank.factor[0])
    assert (guarded.factor[1] == 0).all()
    assert guarded.mean is low_rank.mean
    assert guarded.diagonal is low_rank.diagonal


def test_nearly_dependent_columns_are_kept():
    """Similar columns and least variances, common in training: float32 cannot factorize them."""
    low_rank = normal(shape=(2, 16, 16), dtype=torch.float32)
    low_rank.factor[:] = 10 * low_rank.factor[:, :1] + 1e-4 * low_rank.factor
    low_rank.diagonal[:] = 1e-5
    capacitance = low_rank._capacitance().float()
    assert torch.linalg.cholesky_ex(capacitance).info.all(), "float32 factorizes it, so that the test is void"
    assert low_rank.guarded() is low_rank


def test_infinite_factor_leaves_loss_and_gradient_finite():
    model = fresh("ssn")
    with torch.no_grad():
        model.factor.weight.fill_(math.inf)
    image = images(1, 1, 8, 8)
    loss = model(image, labels(1, 1, 2, 8, 8))["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(model.mean.weight.grad).all()
    with pytest.raises(UserError, match="NaN or infinite"):  # a trained model has no such weights
        model.sample(image, 2)


def test_spread_is_the_root_of_the_mean_variance():
    low_rank = normal()
    variances = reference(low_rank).covariance_matrix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(low_rank.spread(), variances.mean().sqrt())


def test_covariance_starts_small():
    """Of the usual start of the layers, about a hundredth of the variance: draws are close to the mean."""
    normal = fresh("ssn").distribution(images(2))
    assert normal.spread() < 0.3
    assert normal.factor.std() > 1e-3, "without any factor, all directions would be the same"


# --- the region of interest -------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [(4, 5), (2, 4, 5)])
def test_pixels_above_the_lowest_intensity_of_some_channel(space):
    image = torch.randint(0, 3, (2, 2, *space), generator=torch.Generator().manual_seed(0)).float()
    region = above_lowest(image)
    for i in range(2):
        expected = torch.zeros(space, dtype=torch.bool)
        for channel in image[i]:
            expected |= channel != channel.min()
        assert torch.equal(region[i, 0], expected)


def test_logits_outside_the_region_do_not_vary():
    model, image = fresh("ssn", region="above-lowest").eval(), images(1, 1, 8, 8)
    image[..., :3] = -1.0
    low_rank, whole = model.distribution(image), fresh("ssn").distribution(image)
    assert (low_rank.factor[..., :3] == 0).all()
    torch.testing.assert_close(low_rank.diagonal[..., :3], torch.full((1, 2, 8, 3), model.config.epsilon))
    for part in ("mean", "diagonal", "factor"):
        torch.testing.assert_close(getattr(low_rank, part)[..., 3:], getattr(whole, part)[..., 3:])


# --- the loss ---------------------------------------------------------------------------------------------


def test_log_mean_likelihood_is_the_brute_force_mean_of_products():
    logits, maps = torch.randn(2, 5, 3, 2, 2, dtype=torch.float64), torch.randint(3, (2, 2, 2))
    some = torch.tensor([[[True, False], [True, True]], [[False, False], [True, True]]])
    for mask in (some, None):
        for i in range(2):
            likelihoods, pixels = [], torch.zeros(2, 2, dtype=torch.float64)
            for j in range(5):
                product = 1.0
                for r in range(2):
                    for c in range(2):
                        p = logits[i, j, :, r, c].exp() / logits[i, j, :, r, c].exp().sum()
                        if mask is None or mask[i, r, c]:
                            product *= p[maps[i, r, c]].item()
                            pixels[r, c] += p[maps[i, r, c]] / 5
                        else:
                            pixels[r, c] = 1
                likelihoods.append(product)
            expected = math.log(sum(likelihoods) / 5), pixels.log().sum().item()
            joint, single = log_mean_likelihoods(logits, maps, mask)
            assert (joint[i].item(), single[i].item()) == pytest.approx(expected, abs=1e-12)


def test_mirrored_draws_are_punished():
    """Of a good and an inverted draw, the likelihood of maps sees the good one, that of pixels the mean of both."""
    logits = torch.zeros(1, 2, 2, 8, 8)
    logits[:, 0, 1], logits[:, 1, 1] = -8.0, 8.0
    maps = torch.zeros(1, 8, 8, dtype=torch.int64)
    joint, single = log_mean_likelihoods(logits, maps, None)
    good, _ = log_mean_likelihoods(logits[:, :1], maps, None)
    assert joint.item() == pytest.approx(good.item() - math.log(2), abs=1e-3)
    assert single.item() == pytest.approx(64 * math.log(0.5), rel=1e-3)


def test_likelihoods_below_the_range_of_floats_are_averaged():
    logits = torch.zeros(1, 2, 2, 64, 64)
    logits[:, 1] = torch.tensor([3.0, 0.0])[:, None, None]
    maps = torch.ones(1, 64, 64, dtype=torch.int64)
    one, other = 4096 * math.log(0.5), 4096 * -math.log1p(math.exp(3))
    assert log_mean_likelihoods(logits, maps, None)[0].item() == pytest.approx(max(one, other) - math.log(2), rel=1e-5)


def test_loss_draws_pairs_mirrored_about_the_mean(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "stochseg.models.baselines.ssn.log_mean_likelihoods",
        lambda logits, *rest: seen.append(logits) or log_mean_likelihoods(logits, *rest),
    )
    model, image = fresh("ssn", draws=6), images(2, 1, 8, 8)
    with torch.no_grad():
        model(image, labels(2, 1, 2, 8, 8), keys=[(0,), (1,)])
        mean = model.distribution(image).mean
    (logits,) = seen
    assert logits.shape == (2, 6, 2, 8, 8)
    torch.testing.assert_close((logits[:, :3] + logits[:, 3:]) / 2, mean[:, None].expand(-1, 3, -1, -1, -1))
    deviation = logits[:, :3] - mean[:, None]
    assert not torch.allclose(deviation[:, 0], deviation[:, 1])
    assert not torch.allclose(deviation[0], deviation[1])


def test_mean_learns_alone_by_cross_entropy_in_the_warm_up(tmp_path):
    model, image, maps = fresh("ssn", warmup=2), images(2, 1, 8, 8), labels(2, 1, 2, 8, 8)
    for step in range(3):
        model.zero_grad(set_to_none=True)
        loss = model(image, maps, keys=[(0, 0), (0, 1)])["loss"]
        expected = torch.nn.functional.cross_entropy(model.distribution(image).mean, maps[:, 0])
        loss.backward()
        warm = step < 2
        assert (model.factor.weight.grad is None) == (model.log_diagonal.weight.grad is None) == warm
        assert torch.isclose(loss, 2 * expected, rtol=1e-5) == warm  # of maps and of pixels
    resumed = load(save(model, tmp_path / "model")).train()
    resumed(image, maps, keys=[(0, 0), (0, 1)])["loss"].backward()
    assert resumed.factor.weight.grad is not None, "the steps of the warm-up are counted over restarts"


def test_validation_does_not_count_as_warm_up():
    model = fresh("ssn", warmup=1).eval()
    model(images(1, 1, 8, 8), labels(1, 1, 2, 8, 8))
    assert model.updates == 0


def test_loss_estimates_the_likelihood_of_the_labels():
    """Many draws against integration over a grid, for one pixel, whose two logits differ by a normal number of known
    mean and variance."""
    model = fresh("ssn", draws=4000)
    image, raters = images(1, 1, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.int64)
    with torch.no_grad():
        out = model(image, raters, keys=[(0,)])
        loss = out["joint"].item()
        assert out["loss"].item() == pytest.approx(2 * loss), "of one pixel, both likelihoods are the same"
        low_rank = model.distribution(image)
    covariance = reference(low_rank).covariance_matrix[0].double()
    mean = (low_rank.mean[0, 1] - low_rank.mean[0, 0]).item()
    sigma = (covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]).sqrt()
    z = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weight = (-z.square() / 2).exp()
    p = ((mean + sigma * z).sigmoid() * weight).sum() / weight.sum()
    assert loss == pytest.approx(-p.log().item(), abs=0.01)


def test_odd_number_of_draws_is_refused():
    with pytest.raises(UserError, match="(?s)draws.*2.*got 5"):
        fresh("ssn", draws=5)


# --- sampling ---------------------------------------------------------------------------------------------


def test_network_runs_once_per_image():
    model = fresh("ssn")
    calls = batch_sizes(model.unet)
    assert model.sample(images(2, 1, 8, 8), 5).evaluations == 1
    assert calls == [2]


def test_mean_is_the_average_of_the_probabilities_of_samples(monkeypatch):
    model, image = fresh("ssn"), images(1, 1, 8, 8)
    low_rank = model.distribution(image).guarded()
    logits = low_rank.mean[:, None] + torch.randn(1, 3, 2, 8, 8)
    rows = iter(logits[0])
    monkeypatch.setattr(
        LowRankNormal, "draw", lambda self, noise, m: torch.stack([next(rows) for _ in self.mean])[:, None] - self.mean
    )
    out = model.sample(image, 3)
    torch.testing.assert_close(out.mean[0], logits[0].softmax(1).mean(0))
    assert torch.equal(out.labels[0], logits[0].argmax(1))
