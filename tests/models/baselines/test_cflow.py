"""cFlow: KL against numerical integration, input of the posterior, and sampling."""

import torch
from torch.distributions import Normal

from tests.support.models import batch_sizes, fresh, images, labels


def mean_kl(model, rows=4000):
    """Monte Carlo KL over many draws for one image and label map, and its standard error."""
    image, raters = torch.zeros(500, 1, 1, 1), torch.ones(500, 1, 1, 1, dtype=torch.int64)
    with torch.no_grad():
        parts = [model(image, raters, keys=[(i, j) for j in range(500)])["kl"].item() for i in range(0, rows, 500)]
    parts = torch.tensor(parts)
    return parts.mean().item(), (parts.std() / len(parts) ** 0.5).item()


def ends(model):
    """Features and distributions of the example of `mean_kl`: (features, base of the posterior, prior)."""
    padded, onehot = torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, 2)
    onehot[0, 1, 0, 0] = 1
    with torch.no_grad():
        features = model.posterior.features(torch.cat([padded, onehot], 1))
        return features.flatten(1), as_torch(model.posterior.gaussian(features)), as_torch(model.prior(padded))


def as_torch(gaussian):
    return Normal(gaussian.mean, gaussian.log_sigma.exp())


def test_kl_is_that_of_the_flow_by_integration():
    """One latent dimension: the density of z_K is the slope of its distribution function, found on a fine grid."""
    model = fresh("cflow", latent=1)
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
    assert abs(expected - gaussian) > 0.05, "the flow changes nothing, so that the test is void"
    found, error = mean_kl(model)
    assert abs(found - expected) < 5 * error + 1e-3


def test_kl_of_an_identity_flow_is_that_of_two_gaussians():
    """With w = 0 and b = 0 every tanh is 0."""
    model = fresh("cflow")
    with torch.no_grad():
        for parameter in model.posterior.flows.parameters_of[-1].parameters():
            parameter.zero_()
    _, base, prior = ends(model)
    found, error = mean_kl(model)
    assert abs(found - torch.distributions.kl_divergence(base, prior).sum().item()) < 5 * error + 1e-3


def test_loss_is_the_weighted_sum_of_its_parts():
    out = fresh("cflow", beta=3.0)(images(2, 1, 8, 8), labels(2, 1, 2, 8, 8), keys=[(0,), (1,)])
    torch.testing.assert_close(out["loss"].detach(), out["cross_entropy"] + 3 * out["kl"] / 64)
    assert not out["kl"].requires_grad


def test_posterior_reads_labels_except_void_ones():
    model, seen = fresh("cflow", 3), []
    model.posterior.path.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image, raters = images(1, 1, 5, 5), labels(1, 1, 3, 5, 5)
    mask = torch.ones_like(raters, dtype=torch.bool)
    mask[..., 0] = False
    model(image, raters, mask)
    (read,) = seen
    assert read.shape == (1, 4, 6, 6)
    assert torch.equal(read[:, :1, :5, :5], image)
    assert (read[:, 1:, :5, 0] == 0).all()
    assert (read[:, 1:, 5:] == 0).all()
    assert torch.equal(read[0, 1:, :5, 1:5].argmax(0), raters[0, 0, :, 1:])


def test_sampling_encodes_each_image_once_and_skips_the_posterior():
    model = fresh("cflow")
    calls = {name: batch_sizes(model.get_submodule(name)) for name in ("contracting", "prior", "posterior.path")}
    assert model.sample(images(2, 1, 8, 8), 5).evaluations == 1
    assert calls == {"contracting": [2], "prior": [2], "posterior.path": []}
