"""MoSE: the coupling against linear programming, gradients of its terms, and drawn and weighted samples."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linprog

from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou
from stochseg.models.baselines.mose import coupling, soft_iou_cost
from tests.support.models import fresh, images, labels, perturb

IMAGE, RATERS = images(2, 1, 8, 8), labels(2, 3, 2, 8, 8)


def mose(**config):
    return perturb(fresh("mose", **config), 0.2)


def test_gate_learns_as_released(monkeypatch):
    """The released KL: between the weights of all samples, averaged over them."""
    plans = []
    monkeypatch.setattr(
        "stochseg.models.baselines.mose.coupling", lambda *rest: plans.append(coupling(*rest)) or plans[-1]
    )
    model = mose()
    gate = list(model.experts.gate.parameters())
    got = torch.autograd.grad(model(IMAGE, RATERS, keys=[(0,), (1,)])["loss"], gate)
    _, log_gate = model.encode(IMAGE)
    weights = (log_gate.exp() / 4).repeat_interleave(4, dim=1)
    released = F.kl_div(weights.log(), plans[0].sum(2), reduction="sum") / weights.numel()
    for a, b in zip(got, torch.autograd.grad(released, gate), strict=True):
        torch.testing.assert_close(a, b)


def least_cost(cost, demand, cap):
    """Solve the same problem as a linear program."""
    n, k = cost.shape
    of_sample = np.kron(np.eye(n), np.ones((1, k)))
    of_rater = np.kron(np.ones((1, n)), np.eye(k))
    out = linprog(cost.ravel(), A_ub=of_sample, b_ub=np.full(n, cap), A_eq=of_rater, b_eq=demand)
    assert out.success
    return out.fun


@pytest.mark.parametrize("cap", [0.5, 0.55, 0.8, 1.0])
@pytest.mark.parametrize(("n", "k"), [(2, 3), (16, 4), (5, 1), (3, 7)])
def test_coupling_has_the_least_cost(cap, n, k):
    generator = torch.Generator().manual_seed(n * k)
    cost = torch.rand(20, n, k, generator=generator, dtype=torch.float64)
    cost[:10, 0] *= 0.3  # the sample nearest to most raters
    demand = torch.rand(20, k, generator=generator, dtype=torch.float64)
    demand /= demand.sum(1, keepdim=True)
    plan = coupling(cost, demand, cap)
    torch.testing.assert_close(plan.sum(1), demand)
    assert plan.min() >= -1e-12
    assert plan.sum(2).max() <= cap + 1e-12
    if cap <= 0.55:
        assert (plan.sum(2).max(1).values > cap - 1e-9).any(), (
            "no sample reaches the cap, so that the test shows little"
        )
    expected = [least_cost(c.numpy(), d.numpy(), cap) for c, d in zip(cost, demand, strict=True)]
    torch.testing.assert_close((plan * cost).sum((1, 2)), torch.tensor(expected, dtype=torch.float64))


def test_raters_without_weight_are_left_out_of_the_coupling():
    cost = torch.rand(6, 4, 5)
    demand = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0]).expand(6, -1)
    for cap in (0.5, 1.0):
        plan = coupling(cost, demand, cap)
        assert plan[:, :, [1, 3, 4]].abs().max() == 0
        torch.testing.assert_close(plan[:, :, [0, 2]], coupling(cost[:, :, [0, 2]], demand[:, [0, 2]], cap))
    assert coupling(cost, torch.zeros(6, 5), 0.5).abs().max() == 0


def test_cost_of_hard_maps_is_one_minus_iou():
    """Except for the 1 that is added to both counts, which is negligible in large maps."""
    a, b = torch.randint(3, (2, 4, 8, 8)), torch.randint(3, (2, 5, 8, 8))
    p = torch.nn.functional.one_hot(a, 3).permute(0, 1, 4, 2, 3).double()
    big = p.repeat(1, 1, 1, 20, 20), b.repeat(1, 1, 20, 20)
    cost = soft_iou_cost(*big, torch.ones_like(big[1], dtype=torch.bool))
    torch.testing.assert_close(cost, 1 - pairwise_iou(a, b, 3), atol=1e-3, rtol=0)


def test_cost_ignores_void_pixels():
    p = torch.rand(1, 2, 3, 8, 8).softmax(2)
    raters = labels(1, 2, 3, 8, 8)
    mask = torch.ones_like(raters, dtype=torch.bool)
    mask[:, :, :, 4:] = False
    cropped = soft_iou_cost(p[..., :4], raters[..., :4], mask[..., :4])
    torch.testing.assert_close(soft_iou_cost(p, raters, mask), cropped)


def test_all_void_rater_does_not_change_the_loss():
    model, keys = mose().eval(), [(0,), (1,)]
    mask = torch.ones_like(RATERS, dtype=torch.bool)
    mask[:, 2] = False
    without = model(IMAGE, RATERS[:, :2], keys=keys)["loss"]
    torch.testing.assert_close(model(IMAGE, RATERS, mask, keys)["loss"], without)


def test_transport_trains_the_experts_and_kl_trains_the_gate():
    def gradients(**config):
        model = mose(**config)
        model(IMAGE, RATERS, keys=[(0,), (1,)])["loss"].backward()
        return model.experts

    without = gradients(beta=0.0)
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in without.gate.parameters())
    assert without.mean.grad.abs().max() > 0
    assert without.log_std.grad.abs().max() > 0
    with_gate = gradients(beta=1.0)
    assert all(p.grad.abs().max() > 0 for p in with_gate.gate.parameters())
    torch.testing.assert_close(with_gate.mean.grad, without.mean.grad)


def test_kl_of_the_gate_is_zero_for_a_single_expert_only():
    ones = torch.ones_like(RATERS)
    assert mose(experts=1)(IMAGE, ones)["gate"].item() == pytest.approx(0, abs=1e-6)
    assert mose(experts=4)(IMAGE, ones)["gate"].item() > 0.1


def test_cap_grows_in_training_only():
    model = mose(anneal=4)
    model.eval()(IMAGE, RATERS)
    assert model.cap == 0.5
    model.train()
    seen = []
    for _ in range(6):
        seen.append(model.cap)
        model(IMAGE, RATERS)
    assert seen == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


def test_weighted_samples_use_the_experts_in_turn():
    model = mose(weighted=True, experts=3).eval()
    _, log_gate = model.encode(IMAGE)
    gate = log_gate.exp()
    weights = model.sample(IMAGE, 7).weights
    for k, count in enumerate((3, 2, 2)):
        torch.testing.assert_close(weights[:, k::3], (gate[:, k] / count)[:, None].expand(-1, count))
    few = model.sample(IMAGE, 2).weights
    torch.testing.assert_close(few, gate[:, :2] / gate[:, :2].sum(1, keepdim=True))


def test_weighted_and_drawn_samples_have_the_same_mean():
    drawn, weighted = (mose(weighted=w).sample(IMAGE[:1], 2000) for w in (False, True))
    torch.testing.assert_close(drawn.mean, weighted.mean, atol=0.04, rtol=0)
    assert drawn.labels.float().var(1).max() > 0.05, "the experts agree everywhere, so that the test is void"


def test_cap_of_a_single_sample_must_be_one():
    with pytest.raises(UserError, match="cap"):
        mose(experts=1, samples=1)
    assert mose(experts=1, samples=1, cap=1.0).sample(IMAGE, 2).labels.shape == (2, 2, 8, 8)


def test_pixels_are_counted_in_full_precision():
    raters = torch.zeros(1, 1, 300, 300, dtype=torch.int64)
    raters[..., :260, :260] = 1
    p = torch.nn.functional.one_hot(raters, 2).movedim(-1, 2).float()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            cost = soft_iou_cost(p, raters, torch.ones_like(raters, dtype=torch.bool))
        assert cost.item() == pytest.approx(0, abs=1e-6)


def test_weighted_samples_are_not_independent():
    assert (mose().independent, mose(weighted=True).independent) == (True, False)
