"""Pionono: Gaussians per rater, their KL, the loss, and raters of known habits."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence

from stochseg.core import SeededNoise, draw_normal
from stochseg.models.baselines.pionono import PiononoConfig, RaterGaussians
from stochseg.types import DatasetInfo
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


@pytest.mark.parametrize("average", ["losses", "logits"])
def test_loss_is_the_cross_entropy_over_draws_of_the_rater_and_the_kl(average):
    info = DatasetInfo(num_classes=3, image_channels=1, rater_names=("ana", "ben"))
    model = lively("pionono", 3, info=info, **TINY, l2=0.1, average=average)
    x, y, keys, rater = images(2), labels(2, 1, 3), [(4, 0), (4, 1)], [1, -1]
    out = model(x, y, keys=keys, rater_index=torch.tensor(rater)[:, None])
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the map
    eps = draw_normal(noise.uniform((2, 2, 3)))
    own = model.gaussians
    features = model.combiner.from_features(model.unet(x))
    z = torch.stack([own.mean[r] + eps[i] @ own.factor[r].T for i, r in enumerate(rater)])  # "b draws latent"
    logits = [model.combiner(features, z[:, j]) for j in range(2)]
    if average == "logits":
        logits = [sum(logits) / 2]
    cross_entropy = sum(F.cross_entropy(each, y[:, 0]) for each in logits) / len(logits)
    norm = sum(p.norm() for p in model.combiner.parameters())
    torch.testing.assert_close(out["kl"], own.kl()[rater].mean())
    torch.testing.assert_close(out["loss"], cross_entropy + 5e-4 * own.kl()[rater].mean() + 0.1 * norm)


def test_learning_rate_of_the_distributions_is_their_own():
    model = fresh("pionono", **TINY)
    groups = model.parameter_groups()
    assert [group.get("lr_factor", 1) for group in groups] == [1, 200]
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
