"""Joint Probabilistic U-Net: one prior in training and sampling, and the KL of its flow by integration."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal

from stochseg.core import SeededNoise, standard_normal
from stochseg.models import create
from stochseg.models.baselines.jprob_unet import coordinates
from stochseg.models.baselines.latent import given
from tests.support.models import batch_sizes, fresh, images, labels, perturb

IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 1, 2, 8, 8)


def jprob(classes=2, channels=(4, 8), **config):
    """A model of a flow that is not the identity, as it is at the start."""
    model = fresh("jprob-unet", classes, channels=channels, latent=2, **config)
    perturb(model.flow, 0.3)
    return model


def one_hot(y, classes):
    return F.one_hot(y[:, 0], classes).permute(0, 3, 1, 2).float()


def gaussian(encoder, x):
    """The Gaussian of an encoder, for latents at its mean."""
    return encoder.descend(encoder(x), lambda level: level.mean)[0]


@torch.no_grad()
def on_a_grid(model, x, y, side=301, reach=12.0):
    """The points z of a grid in the plane, log q and log p (by its definition) of one example, and the cell area."""
    q, p = gaussian(model.posterior, torch.cat([x, one_hot(y, 2)], 1)), gaussian(model.encoder, x)
    axis = torch.linspace(-reach, reach, side)
    z = torch.cartesian_prod(axis, axis)
    matrices = torch.func.vmap(torch.func.jacrev(lambda point: model.flow(point[None])[0][0]))(z)
    log_p = Normal(p.mean, p.log_sigma.exp()).log_prob(model.flow(z)[0]).sum(1) + torch.linalg.slogdet(matrices)[1]
    log_q = Normal(q.mean, q.log_sigma.exp()).log_prob(z).sum(1)
    return z, log_q, log_p, (2 * reach / (side - 1)) ** 2


def test_kl_is_that_of_the_flow_by_integration():
    model, x, y = jprob(channels=[4]), IMAGE[:1], RATERS[:1]
    _, log_q, log_p, area = on_a_grid(model, x, y)
    expected = (log_q.exp() * (log_q - log_p)).sum().item() * area
    q = gaussian(model.posterior, torch.cat([x, one_hot(y, 2)], 1))
    assert abs(expected - q.kl(gaussian(model.encoder, x)).item()) > 0.1, "the flow changes nothing: the test is void"
    with torch.no_grad():
        parts = torch.stack(
            [
                model(x.expand(500, -1, -1, -1), y.expand(500, -1, -1, -1), keys=[(i, j) for j in range(500)])["kl"]
                for i in range(6)
            ]
        )
    assert abs(parts.mean().item() - expected) < 5 * (parts.std() / 6**0.5).item() + 1e-3


def test_sampling_draws_from_the_prior_of_the_loss(monkeypatch):
    """Moments of the decoded z against those of p on a grid."""
    model, x, drawn = jprob(channels=[4]), IMAGE[:1], []
    decoded = model.decoded
    monkeypatch.setattr(model, "decoded", lambda condition, z: drawn.append(z) or decoded(condition, z))
    model.sample(x, 4000)
    found = torch.cat(drawn)
    z, _, log_p, area = on_a_grid(model, x, RATERS[:1])
    p = log_p.exp() * area
    assert p.sum().item() == pytest.approx(1, abs=1e-3)
    mean, second = (p[:, None] * z).sum(0), torch.einsum("n,na,nb->ab", p, z, z)
    error = found.std(0) / 4000**0.5
    assert ((found.mean(0) - mean).abs() < 5 * error).all()
    torch.testing.assert_close(found.T @ found / 4000, second, rtol=0.1, atol=0.05)
    assert ((found.mean(0) - gaussian(model.encoder, x).mean).abs() > 0.1).any(), "the flow changes nothing"


def test_loss_is_cross_entropy_and_l1_at_a_draw_of_the_posterior_and_kl():
    """Per pixel, from the parts of the model; the finest level comes first."""
    model, x, y, keys = jprob(3), IMAGE, labels(2, 1, 3, 8, 8), [(4, 0), (4, 1)]
    out = model(x, y, keys=keys)
    noise = SeededNoise(keys)
    noise.uniform((2, 1))  # the rater
    seen = model.posterior(torch.cat([x, one_hot(y, 3)], 1))
    features = model.encoder(x)
    eps = standard_normal(noise, (2, 4)).split(2, 1)

    def head(encoder, maps, level, *coarser):
        out = encoder.heads[level](torch.cat([maps[level].mean((2, 3)), *coarser], 1)[:, :, None, None])
        return Normal(out.mean.flatten(1), out.log_sigma.exp().flatten(1))

    coarse = head(model.posterior, seen, 1)
    z_coarse = coarse.mean + coarse.stddev * eps[1]
    fine = head(model.posterior, seen, 0, z_coarse)
    z_fine = fine.mean + fine.stddev * eps[0]
    z = torch.cat([z_fine, z_coarse], 1)
    moved, log_det = model.flow(z)
    u_fine, u_coarse = moved.split(2, 1)
    log_q = coarse.log_prob(z_coarse).sum(1) + fine.log_prob(z_fine).sum(1)
    prior = head(model.encoder, features, 1), head(model.encoder, features, 0, u_coarse)
    log_p = prior[0].log_prob(u_coarse).sum(1) + prior[1].log_prob(u_fine).sum(1) + log_det
    kl = (log_q - log_p).mean()
    tiled = [part[:, :, None, None].expand(-1, -1, s, s) for part, s in zip(z.split(2, 1), (8, 4), strict=True)]

    def decoded(decoder, own):
        coarse = decoder.stages[1](torch.cat([own[1], tiled[1]], 1))
        up = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        fine = decoder.stages[0](torch.cat([own[0], tiled[0], up], 1))
        return decoder.head(fine), fine, coarse

    restored, *maps = decoded(model.image_decoder, [coordinates(f) for f in features])
    both = [torch.cat(pair, 1) for pair in zip(features, maps, strict=True)]
    cross_entropy = F.cross_entropy(decoded(model.mask_decoder, both)[0], y[:, 0])
    expected = cross_entropy + 0.5 * (restored - x).abs().mean() + 2 * kl / 64
    torch.testing.assert_close(out["loss"], expected)
    assert not any(out[part].requires_grad for part in ("cross_entropy", "image", "kl"))


def test_image_decoder_depends_on_the_image_through_latents_only():
    model, seen = jprob(), []
    model.image_decoder.register_forward_hook(lambda module, inputs, out: seen.append(inputs))
    for x in (IMAGE, IMAGE + 1):
        model(x, RATERS, keys=[(0,), (1,)])
    (latents, *rest), (other_latents, *other_rest) = seen
    assert all(torch.equal(a, b) for a, b in zip(rest, other_rest, strict=True))
    assert not torch.equal(latents, other_latents)


def test_coordinates_run_from_minus_one_to_one():
    found = coordinates(torch.zeros(2, 5, 3, 2))
    assert found.shape == (2, 2, 3, 2)
    assert found[1, 0].tolist() == [[-1, -1], [0, 0], [1, 1]]
    assert found[1, 1].tolist() == [[-1, 1]] * 3


def test_sampling_encodes_each_image_once_and_skips_the_posterior():
    model = jprob()
    encoder, posterior = (batch_sizes(part) for part in (model.encoder, model.posterior))
    assert model.sample(IMAGE, 5).evaluations == 1
    assert encoder == [2]
    assert posterior == []


def test_finer_latents_depend_on_coarser_ones():
    for conditioning in ("top-down", "none"):
        model = jprob(conditioning=conditioning)
        features = model.encoder(IMAGE)
        one, other = (
            model.encoder.descend(features, given([torch.full((2, 2), v), torch.zeros(2, 2)]))[0] for v in (0.0, 1.0)
        )
        assert torch.equal(one.mean[:, 2:], other.mean[:, 2:]), "the coarsest level comes last, and first"
        assert torch.equal(one.mean[:, :2], other.mean[:, :2]) == (conditioning == "none")


def test_default_is_five_levels_of_eight_latents():
    model = create("jprob-unet")
    assert (len(model.config.channels), model.config.latent) == (5, 8)
    assert model.config.beta == pytest.approx(10 / 5), "10 for the mean of five levels"
    assert gaussian(model.encoder, torch.zeros(1, 1, 16, 16)).mean.shape == (1, 40)
