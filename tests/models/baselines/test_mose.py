"""MoSE: the coupling against linear programming, where gradients go, honest and weighted samples, two readings."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from stochseg.core import draw_normal
from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou
from stochseg.models import create
from stochseg.models.baselines.mose import coupling, soft_iou_cost

TINY = {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": []}


def mose(classes=2, channels=1, **config):
    torch.manual_seed(0)
    model = create("mose", classes, channels, **{**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def cheapest(cost, demand, cap):
    """The same problem as a linear programme."""
    n, k = cost.shape
    of_sample = np.kron(np.eye(n), np.ones((1, k)))
    of_rater = np.kron(np.ones((1, n)), np.eye(k))
    out = linprog(cost.ravel(), A_ub=of_sample, b_ub=np.full(n, cap), A_eq=of_rater, b_eq=demand)
    assert out.success
    return out.fun


@pytest.mark.parametrize("cap", [0.5, 0.55, 0.8, 1.0])
@pytest.mark.parametrize(("n", "k"), [(2, 3), (16, 4), (5, 1), (3, 7)])
def test_coupling_is_the_cheapest(cap, n, k):
    generator = torch.Generator().manual_seed(n * k)
    cost = torch.rand(20, n, k, generator=generator, dtype=torch.float64)
    cost[:10, 0] *= 0.3  # a sample that most raters are nearest to
    demand = torch.rand(20, k, generator=generator, dtype=torch.float64)
    demand /= demand.sum(1, keepdim=True)
    plan = coupling(cost, demand, cap)
    torch.testing.assert_close(plan.sum(1), demand)
    assert plan.min() >= -1e-12
    assert plan.sum(2).max() <= cap + 1e-12
    if cap <= 0.55:
        assert (plan.sum(2).max(1).values > cap - 1e-9).any(), "no cap was reached; the test shows little"
    expected = [cheapest(c.numpy(), d.numpy(), cap) for c, d in zip(cost, demand, strict=True)]
    torch.testing.assert_close((plan * cost).sum((1, 2)), torch.tensor(expected, dtype=torch.float64))


def test_raters_without_weight_are_no_part_of_the_coupling():
    cost = torch.rand(6, 4, 5)
    demand = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0]).expand(6, -1)
    for cap in (0.5, 1.0):
        plan = coupling(cost, demand, cap)
        assert plan[:, :, [1, 3, 4]].abs().max() == 0
        torch.testing.assert_close(plan[:, :, [0, 2]], coupling(cost[:, :, [0, 2]], demand[:, [0, 2]], cap))
    assert coupling(cost, torch.zeros(6, 5), 0.5).abs().max() == 0


def test_cost_is_one_minus_iou_for_hard_maps():
    """Up to the 1 that both counts begin with: repeat the maps and it fades."""
    a, b = torch.randint(3, (2, 4, 8, 8)), torch.randint(3, (2, 5, 8, 8))
    p = torch.nn.functional.one_hot(a, 3).permute(0, 1, 4, 2, 3).double()
    big = p.repeat(1, 1, 1, 20, 20), b.repeat(1, 1, 20, 20)
    cost = soft_iou_cost(*big, torch.ones_like(big[1], dtype=torch.bool))
    torch.testing.assert_close(cost, 1 - pairwise_iou(a, b, 3), atol=1e-3, rtol=0)


def test_cost_leaves_void_out():
    p = torch.rand(1, 2, 3, 8, 8).softmax(2)
    labels = torch.randint(3, (1, 2, 8, 8))
    valid = torch.ones_like(labels, dtype=torch.bool)
    valid[:, :, :, 4:] = False
    cropped = soft_iou_cost(p[..., :4], labels[..., :4], valid[..., :4])
    torch.testing.assert_close(soft_iou_cost(p, labels, valid), cropped)


def test_a_rater_of_nothing_but_void_changes_nothing():
    model, image, labels = mose().eval(), torch.rand(1, 1, 8, 8), torch.randint(2, (1, 3, 8, 8))
    mask = torch.ones_like(labels, dtype=torch.bool)
    mask[:, 2] = False
    two = model(image, labels[:, :2], keys=[(1,)])["loss"]
    torch.testing.assert_close(model(image, labels, mask, keys=[(1,)])["loss"], two)


def test_the_transport_moves_the_experts_and_the_kl_moves_the_gate():
    image, labels = torch.rand(2, 1, 8, 8), torch.randint(2, (2, 3, 8, 8))

    def gradients(**config):
        model = mose(**config)
        model(image, labels, keys=[(0,), (1,)])["loss"].backward()
        return model.experts

    without = gradients(beta=0.0)
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in without.gate.parameters())
    assert without.mean.grad.abs().max() > 0
    assert without.log_std.grad.abs().max() > 0
    with_gate = gradients(beta=1.0)
    assert all(p.grad.abs().max() > 0 for p in with_gate.gate.parameters())
    torch.testing.assert_close(with_gate.mean.grad, without.mean.grad)


def test_kl_of_the_gate_is_zero_where_it_agrees_and_grows_where_not():
    """All raters one map and one expert: the gate of one expert is right by itself."""
    image, labels = torch.rand(1, 1, 8, 8), torch.ones(1, 2, 8, 8, dtype=torch.int64)
    assert mose(experts=1)(image, labels)["gate"].item() == pytest.approx(0, abs=1e-6)
    assert mose(experts=4)(image, labels)["gate"].item() > 0.1


def test_cap_grows_while_training_only():
    model, image, labels = mose(anneal=4), torch.rand(1, 1, 8, 8), torch.randint(2, (1, 2, 8, 8))
    model.eval()(image, labels)
    assert model.cap == 0.5
    model.train()
    seen = []
    for _ in range(6):
        seen.append(model.cap)
        model(image, labels)
    assert seen == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


def test_weighted_samples_go_round_the_experts():
    model, image = mose(weighted=True, experts=3).eval(), torch.rand(2, 1, 8, 8)
    _, log_gate = model.encode(image)
    gate = log_gate.exp()
    weights = model.sample(image, 7).weights
    for k, count in enumerate((3, 2, 2)):
        torch.testing.assert_close(weights[:, k::3], (gate[:, k] / count)[:, None].expand(-1, count))
    few = model.sample(image, 2).weights
    torch.testing.assert_close(few, gate[:, :2] / gate[:, :2].sum(1, keepdim=True))


def test_weighted_and_drawn_samples_have_one_mean():
    """The mean probabilities of many draws are those of many weighted samples."""
    image = torch.rand(1, 1, 8, 8)
    drawn, weighted = (mose(weighted=w).sample(image, 2000).mean for w in (False, True))
    torch.testing.assert_close(drawn, weighted, atol=0.04, rtol=0)
    spread = mose().sample(image, 200).labels.float().var(1)
    assert spread.max() > 0.05, "the experts agree everywhere; the test shows nothing"


def test_one_sample_cannot_keep_a_cap():
    with pytest.raises(UserError, match="one expert with one sample"):
        mose(experts=1, samples=1)
    assert mose(experts=1, samples=1, cap=1.0).sample(torch.rand(1, 1, 8, 8), 2).labels.shape == (1, 2, 8, 8)


def test_two_readings_are_found_with_their_frequencies():
    """Seven raters see class 1 everywhere, three see class 2."""
    torch.manual_seed(0)
    model = create("mose", 3, 1, **{**TINY, "multipliers": [1], "anneal": 40})
    image = torch.zeros(1, 1, 8, 8)
    labels = (1 + (torch.arange(10) >= 7).long())[None, :, None, None].expand(1, 10, 8, 8).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(120):
        optimizer.zero_grad()
        model(image, labels, keys=[(step,)])["loss"].backward()
        optimizer.step()
    out = model.sample(image, 400)
    first, second = ((out.labels[0] == c).float().mean((1, 2)) for c in (1, 2))
    assert ((first > 0.98) | (second > 0.98)).float().mean() > 0.95, "samples are whole readings"
    assert first.mean().item() == pytest.approx(0.7, abs=0.1)


def test_normal_numbers_at_the_ends_of_the_uniforms():
    u = torch.tensor([0.0, 0.5 - 2**-25, 1 - 2**-24])
    z = draw_normal(u)
    assert torch.isfinite(z).all()
    assert z[0] < -5
    assert z[1] == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(z[2], -z[0])


def test_pixels_are_counted_in_full_precision():
    labels = torch.zeros(1, 1, 300, 300, dtype=torch.int64)
    labels[..., :260, :260] = 1
    p = torch.nn.functional.one_hot(labels, 2).movedim(-1, 2).float()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            cost = soft_iou_cost(p, labels, torch.ones_like(labels, dtype=torch.bool))
        assert cost.item() == pytest.approx(0, abs=1e-6)


def test_weighted_samples_are_not_independent():
    assert (mose().independent, mose(weighted=True).independent) == (True, False)
