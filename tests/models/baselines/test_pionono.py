"""Pionono: Gaussians per rater, their KL, the loss, and raters of known habits."""

import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence

from stochseg.core import SeededNoise, draw_normal
from stochseg.models.baselines.pionono import PiononoConfig, RaterGaussians
from tests.support.models import fresh, images, labels, lively, perturb

TINY = {"base": 4, "multipliers": [1, 2], "blocks": 1, "features": 4, "latent": 3, "draws": 2}


def gaussians(raters: int = 4) -> RaterGaussians:
    torch.manual_seed(0)
    return perturb(RaterGaussians(raters, PiononoConfig(latent=3, prior_sigma=1.5)).double(), 0.4)


def test_kl_equals_that_of_torch():
    own = gaussians()
    prior = MultivariateNormal(torch.zeros(3).double(), 1.5**2 * torch.eye(3).double())
    expected = kl_divergence(MultivariateNormal(own.mean, scale_tril=own.factor), prior)
    torch.testing.assert_close(own.kl(), expected, rtol=1e-7, atol=1e-7)  # log σ of the prior is float32


def test_draws_are_affine_in_the_noise():
    """z = μ_r + L_r ε, so that its covariance is L_r L_rᵀ: the images of 0 and of the unit vectors show μ_r and L_r."""
    own, rater = gaussians(), torch.tensor([2, 2, 2, 2, -1])
    eps = torch.cat([torch.zeros(1, 3), torch.eye(3), torch.zeros(1, 3)]).double()
    z = own.draw(rater, eps)
    torch.testing.assert_close(z[0], own.mean[2])
    torch.testing.assert_close((z[1:4] - z[0]).T, own.factor[2])
    torch.testing.assert_close(z[4], own.mean[3])
    assert (own.factor.diagonal(dim1=1, dim2=2) > 0).all()
    assert own.factor.triu(1).abs().max() == 0


def test_start_is_the_prior_around_spread_means():
    torch.manual_seed(0)
    own = RaterGaussians(500, PiononoConfig())
    torch.testing.assert_close(own.factor, 2 * torch.eye(8).expand(500, 8, 8))
    assert abs(own.mean.std().item() - 8) < 0.3


def test_loss_is_the_mean_cross_entropy_over_draws_and_kl():
    model, x, y, keys = lively("pionono", 3, **TINY, l2=0.1), images(2), labels(2, 1, 3), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the map
    eps = draw_normal(noise.uniform((2, 2, 3)))
    features = model.combiner.from_features(model.unet(x))
    terms = [
        F.cross_entropy(
            model.combiner(features, model.gaussians.mean[0] + eps[:, i] @ model.gaussians.factor[0].T), y[:, 0]
        )
        for i in range(2)
    ]
    norm = sum(p.norm() for p in model.combiner.parameters())
    expected = sum(terms) / 2 + 5e-4 * model.gaussians.kl()[0] + 0.1 * norm
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(out["kl"], model.gaussians.kl()[0])


def test_learning_rate_of_the_distributions_is_their_own():
    model = fresh("pionono", **TINY)
    groups = model.parameter_groups()
    assert [group.get("lr_factor", 1) for group in groups] == [1, 200]
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
