"""cFlow: its KL against integration, what its posterior reads, and how it samples."""

import torch
from torch.distributions import Normal

from stochseg.models import create
from tests.support.readings import learn

TINY = {"channels": [8, 16], "convs": 1}


def cflow(classes=2, **config):
    torch.manual_seed(0)
    return create("cflow", classes, 1, **{**TINY, **config})


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
        features = model.posterior.features(torch.cat([padded, void], 1))
        return features.flatten(1), as_torch(model.posterior.gaussian(features)), as_torch(model.prior(padded))


def as_torch(gaussian):
    return Normal(gaussian.mean, gaussian.log_sigma.exp())


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
    model.posterior.path.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
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
    for name in ("contracting", "prior", "posterior.path"):
        model.get_submodule(name).register_forward_hook(
            lambda _, inputs, out, name=name: calls.append((name, len(inputs[0])))
        )
    assert model.sample(torch.rand(2, 1, 8, 8), 5).evaluations == 1
    assert sorted(calls) == [("contracting", 2), ("prior", 2)]


def test_both_readings_are_drawn_with_their_frequencies():
    one, zero = learn(cflow(channels=[8], latent=2), steps=200, lr=5e-3, batch=16)
    assert 0.55 < one < 0.85
    assert 0.15 < zero < 0.45
