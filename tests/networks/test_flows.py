"""Flows: invertible, with the right determinant, for any parameters."""

import pytest
import torch
from torch.autograd.functional import jacobian

from stochseg.networks.flows import MIN_SLOPE, NICE, PlanarFlows, planar


def parameters(b=6, d=4, scale=3.0):
    """z, u, w "b d" and b "b"; in the second half u and w are opposed, which activates the constraint."""
    z, u, w = torch.randn(3, b, d, dtype=torch.float64)
    u, w = scale * u, scale * w
    u[b // 2 :] = -w[b // 2 :]
    return z, u, w, torch.randn(b, dtype=torch.float64)


def test_log_determinant_is_that_of_the_jacobian():
    z, u, w, b = parameters()
    _, log_det = planar(z, u, w, b)
    for i in range(len(z)):
        matrix = jacobian(lambda x, i=i: planar(x[None], u[i : i + 1], w[i : i + 1], b[i : i + 1])[0][0], z[i])
        determinant = torch.linalg.det(matrix)
        assert determinant > 0
        torch.testing.assert_close(log_det[i], determinant.log())


def test_the_part_along_w_stays_above_minus_one():
    """At z = 0 and b = 0 the derivative along w has its minimum 1 + w·û."""
    _, u, w, _ = parameters(b=200, scale=10.0)
    zero = torch.zeros_like(u)
    _, log_det = planar(zero, u, w, zero[:, 0])
    assert ((u * w).sum(1) < -1).any(), "no parameter needs the constraint"
    assert (log_det.exp() >= 0.99 * MIN_SLOPE).all()


def test_the_constraint_changes_u_along_w_as_published():
    """w·û = softplus(w·u) - 1, Rezende and Mohamed's Appendix A.1; û is computed from f(z) - z."""
    z, u, w, b = parameters(scale=1.0)
    moved = (planar(z, u, w, b)[0] - z) / torch.tanh((w * z).sum(1) + b)[:, None]
    expected = torch.log1p((w * u).sum(1).exp()) - 1 + MIN_SLOPE
    torch.testing.assert_close((w * moved).sum(1), expected)
    change = moved - u
    along = (change * w).sum(1, keepdim=True) / w.square().sum(1, keepdim=True) * w
    torch.testing.assert_close(change, along)


def test_a_flow_can_be_inverted():
    """By bisection of w·z, which the constraint makes monotone."""
    z, u, w, b = parameters(b=20)
    out, _ = planar(z, u, w, b)

    def point(a):
        """Along w, with w·z = a."""
        return (a / w.square().sum(1))[:, None] * w

    target = (w * out).sum(1)
    low, high = target - 1e4, target + 1e4
    for _ in range(100):
        middle = (low + high) / 2
        below = (w * planar(point(middle), u, w, b)[0]).sum(1) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    moved = planar(point(low), u, w, b)[0] - point(low)  # points of equal w·z move equally
    torch.testing.assert_close(out - moved, z, atol=1e-6, rtol=1e-6)


def test_extreme_parameters_stay_finite():
    z = torch.zeros(3, 2)
    w = torch.tensor([[0.0, 0.0], [1e4, 1e4], [1e-8, 0.0]])
    u = torch.tensor([[1.0, 1.0], [-1e4, -1e4], [-1.0, 2.0]])
    out, log_det = planar(z, u, w, torch.zeros(3))
    assert torch.isfinite(out).all()
    assert torch.isfinite(log_det).all()
    assert log_det[0] == 0


def test_log_determinants_of_a_sequence_of_flows_add_up():
    flows = PlanarFlows(5, 3, 4).double()
    for parameter in flows.parameters():
        torch.nn.init.normal_(parameter)
    z, features = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    _, log_det = flows(z, features)
    for i in range(2):
        matrix = jacobian(lambda x, i=i: flows(x[None], features[i : i + 1])[0][0], z[i])
        torch.testing.assert_close(log_det[i], torch.linalg.slogdet(matrix).logabsdet)


def test_each_example_has_its_own_flows():
    flows = PlanarFlows(5, 3, 2)
    z = torch.randn(1, 3).expand(2, -1)
    out, _ = flows(z, torch.randn(2, 5))
    assert not torch.allclose(out[0], out[1])


# --- NICE -------------------------------------------------------------------------------------------------


def nice(latent, count=4):
    """A nonlinear flow; a new one is the identity."""
    flow = NICE(latent, count, width=16).double()
    for parameter in flow.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return flow


@pytest.mark.parametrize("latent", [2, 5, 8])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_nice_is_inverted_exactly(latent, count):
    flow, z = nice(latent, count), 3 * torch.randn(20, latent, dtype=torch.float64)
    out, _ = flow(z)
    assert (out - z).abs().max() > 0.1
    torch.testing.assert_close(flow.inverse(out), z)
    torch.testing.assert_close(flow(flow.inverse(z))[0], z)


@pytest.mark.parametrize("latent", [2, 5, 8])
def test_log_determinant_of_nice_is_that_of_the_jacobian(latent):
    flow, z = nice(latent), torch.randn(3, latent, dtype=torch.float64)
    _, log_det = flow(z)
    for i in range(3):
        matrix = jacobian(lambda x: flow(x[None])[0][0], z[i])
        assert (matrix - matrix.diag().diag()).abs().max() > 0.01
        torch.testing.assert_close(log_det[i], torch.linalg.slogdet(matrix).logabsdet)


def test_every_entry_of_nice_depends_on_the_other_half():
    """Two couplings are enough for each half to depend on the other."""
    flow, z = nice(6, 2), torch.randn(6, dtype=torch.float64)
    matrix = jacobian(lambda x: flow(x[None])[0][0], z)
    assert (matrix[0::2, 1::2].abs().sum(1) > 0).all()
    assert (matrix[1::2, 0::2].abs().sum(1) > 0).all()


def test_nice_starts_as_the_identity():
    z = torch.randn(4, 7)
    out, log_det = NICE(7)(z)
    assert torch.equal(out, z)
    assert torch.equal(log_det, torch.zeros(4))
    assert torch.equal(NICE(7).inverse(z), z)


def test_planar_stays_finite_with_large_weights():
    w = torch.full((1, 6), 200.0)
    _, log_det = planar(torch.zeros(1, 6), -w, w, torch.zeros(1))
    assert torch.isfinite(log_det).all()
