"""cFlow: its KL against integration, what its posterior reads, and how it samples."""

import math

import pytest
import torch
from torch.distributions import Normal

from stochseg.errors import UserError
from stochseg.models import create

TINY = {"base": 8, "multipliers": [1, 2], "blocks": 1, "convs": 1}


def cflow(classes=2, channels=1, **config):
    torch.manual_seed(0)
    return create("cflow", classes, channels, **{**TINY, **config})


def mean_kl(model, rows=4000):
    """The Monte Carlo KL over many draws for one and the same image and labels, and its standard error."""
    image, labels = torch.zeros(rows, 1, 1, 1), torch.ones(rows, 1, 1, 1, dtype=torch.int64)
    with torch.no_grad():
        parts = [
            model(image[i : i + 500], labels[i : i + 500], keys=[(i, j) for j in range(500)])["kl"].item()
            for i in range(0, rows, 500)
        ]
    parts = torch.tensor(parts)
    return parts.mean().item(), (parts.std() / len(parts) ** 0.5).item()


def ends(model):
    """Features and distributions of that one example: (features, base of the posterior, prior)."""
    padded, void = torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, 2)
    void[0, 1, 0, 0] = 1
    with torch.no_grad():
        features, base = model.posterior.encoder(torch.cat([padded, void], 1))
        return features, base, model.prior(padded)[1]


def test_the_kl_is_that_of_the_flow_by_integration():
    """One latent dimension: the density of z_K is the slope of its distribution function, found on a fine grid."""
    model = cflow(latent=1, convs=1)
    with torch.no_grad():
        last = model.posterior.flows.parameters_of[-1]
        last.bias.copy_(torch.linspace(-2, 2, len(last.bias)))
    features, base, prior = ends(model)
    z0 = torch.linspace(-7, 7, 8001).double() * base.scale.double() + base.loc.double()
    flows = model.posterior.flows.double()
    with torch.no_grad():
        z = flows(z0.view(-1, 1), features.double().expand(z0.numel(), -1))[0].flatten()
    flows.float()
    mass = Normal(base.loc.double(), base.scale.double()).cdf(z0).flatten().diff()
    middle = (z[1:] + z[:-1]) / 2
    log_q = mass.log() - z.diff().log()
    log_p = Normal(prior.loc.double(), prior.scale.double()).log_prob(middle).flatten()
    expected = (mass * (log_q - log_p))[mass > 0].sum().item()
    gaussian = torch.distributions.kl_divergence(base, prior).item()
    assert abs(expected - gaussian) > 0.05, "the flow changes nothing; the test shows nothing"
    found, error = mean_kl(model)
    assert abs(found - expected) < 5 * error + 1e-3


def test_a_flow_that_does_nothing_leaves_the_kl_of_two_gaussians():
    """With w = 0 and b = 0 every tanh is 0."""
    model = cflow(latent=3)
    with torch.no_grad():
        for parameter in model.posterior.flows.parameters_of[-1].parameters():
            parameter.zero_()
    _, base, prior = ends(model)
    found, error = mean_kl(model)
    assert abs(found - torch.distributions.kl_divergence(base, prior).sum().item()) < 5 * error + 1e-3


def test_the_loss_is_its_parts_weighted():
    model, image, labels = cflow(beta=3.0), torch.rand(2, 1, 8, 8), torch.randint(2, (2, 1, 8, 8))
    out = model(image, labels, keys=[(0,), (1,)])
    torch.testing.assert_close(out["loss"].detach(), out["cross_entropy"] + 3 * out["kl"] / 64)
    assert not out["kl"].requires_grad


def test_the_posterior_reads_labels_and_none_where_they_are_void():
    model, seen = cflow(3), []
    model.posterior.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image, labels = torch.rand(1, 1, 5, 5), torch.randint(3, (1, 1, 5, 5))
    mask = torch.ones_like(labels, dtype=torch.bool)
    mask[..., 0] = False
    model(image, labels, mask)
    (read,) = seen
    assert read.shape == (1, 4, 6, 6)
    assert torch.equal(read[:, :1, :5, :5], image)
    assert (read[:, 1:, :5, 0] == 0).all()
    assert (read[:, 1:, 5:] == 0).all()
    assert torch.equal(read[0, 1:, :5, 1:5].argmax(0), labels[0, 0, :, 1:])


def test_the_image_is_read_once_and_the_flow_is_left_out_of_sampling():
    model, calls = cflow(), []
    for name in ("unet", "prior", "posterior"):
        getattr(model, name).register_forward_hook(
            lambda _, inputs, out, name=name: calls.append((name, len(inputs[0])))
        )
    assert model.sample(torch.rand(2, 1, 8, 8), 5).evaluations == 1
    assert sorted(calls) == [("prior", 2), ("unet", 2)]


def test_chunks_change_nothing_and_progress_reaches_its_total():
    image = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    seen = []
    whole = cflow(chunk=64).sample(image, 5)
    parts = cflow(chunk=1).sample(image, 5, progress=lambda *now: seen.append(now))
    assert (whole.labels != parts.labels).float().mean() <= 1e-3
    torch.testing.assert_close(whole.mean, parts.mean, atol=1e-5, rtol=0)
    assert seen == [(i + 1, 3) for i in range(3)]


def test_unknown_noise_is_refused():
    with pytest.raises(UserError, match="unknown noise 'white'"):
        cflow().sample(torch.rand(1, 1, 8, 8), 1, noise="white")


def test_log_sigma_is_limited():
    model = cflow()
    with torch.no_grad():
        model.prior.head.bias.fill_(1e6)
        sigma = model.prior(torch.zeros(1, 1, 8, 8))[1].scale
    assert sigma.max() <= math.exp(7.001)
    assert torch.isfinite(model(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8, dtype=torch.int64))["loss"])


def test_two_readings_of_an_image_are_sampled_with_their_frequencies():
    model = cflow(multipliers=[1], latent=2)
    image = torch.zeros(10, 1, 8, 8)
    labels = (torch.arange(10) < 3).long()[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 200)
        optimizer.zero_grad()
        model(image, labels, keys=[(step, i) for i in range(10)])["loss"].backward()
        optimizer.step()
    share = model.sample(image[:1], 300).labels[0].float().mean((1, 2))
    assert ((share < 0.02) | (share > 0.98)).float().mean() > 0.9, "a sample is one reading, not a mixture of pixels"
    assert 0.18 < (share > 0.5).float().mean() < 0.42
