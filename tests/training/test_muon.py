"""Muon against singular value decompositions, against Adam, and on an ill-conditioned problem."""

import pytest
import torch

from stochseg.training.muon import MIN_SIZE, NEWTON_SCHULZ, STEP_RMS, Muon, is_matrix, orthogonalize


def newton_schulz(matrix: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The iteration as published: on the matrix itself, in float64."""
    x = matrix.double() / matrix.double().norm()
    a, b, c = NEWTON_SCHULZ
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(24, 24), (16, 200), (200, 16), (48, 432)])
def test_orthogonalize_matches_the_iteration_and_is_near_the_polar_factor(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalize(matrix)
    torch.testing.assert_close(found.double(), newton_schulz(matrix), atol=2e-4, rtol=0)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    inside = torch.linalg.svdvals(found)[s / matrix.norm() > 0.01]
    assert inside.min() > 0.65
    assert inside.max() < 1.25
    # The same singular vectors: in their basis the matrix is diagonal.
    rotated = u.mT @ found @ vh.mT
    assert (rotated - rotated.diagonal().diag_embed()).abs().max() < 2e-3


def test_orthogonalize_of_low_rank_or_zeros_is_finite():
    thin = torch.randn(32, 2) @ torch.randn(2, 300)
    values = torch.linalg.svdvals(orthogonalize(thin))
    assert values[:2].min() > 0.65
    assert values.max() < 1.25
    assert orthogonalize(torch.zeros(20, 30)).abs().max() == 0


def test_a_step_has_the_size_of_a_step_of_adam_for_any_gradient():
    def size(scale: float) -> float:
        weight = torch.nn.Parameter(torch.zeros(32, 16, 3, 3))
        weight.grad = scale * torch.randn(32, 16, 3, 3, generator=torch.Generator().manual_seed(1))
        Muon([weight], lr=0.01).step()
        return weight.square().mean().sqrt().item()

    assert size(1.0) == pytest.approx(0.01 * STEP_RMS, rel=0.3)  # singular values are near 1, not 1
    assert size(1e-6) == pytest.approx(size(1.0), rel=1e-3)
    assert size(1e4) == pytest.approx(size(1.0), rel=1e-3)


def test_steps_match_a_reference_in_float64():
    generator = torch.Generator().manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(32, 16, 3, 3, generator=generator))
    expected, mean = weight.detach().double().flatten(1), torch.zeros(32, 144, dtype=torch.float64)
    optimizer = Muon([weight], lr=0.1, weight_decay=0.01)
    for _ in range(4):
        weight.grad = torch.randn(32, 16, 3, 3, generator=generator).to(memory_format=torch.channels_last)
        gradient = weight.grad.double().flatten(1)
        mean = 0.95 * mean + 0.05 * gradient
        update = newton_schulz(0.05 * gradient + 0.95 * mean) * STEP_RMS * 144**0.5
        expected = (1 - 0.1 * 0.01) * expected - 0.1 * update
        optimizer.step()
        torch.testing.assert_close(weight.detach().double().flatten(1), expected, atol=1e-3, rtol=0)


def test_other_parameters_are_updated_by_adam():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, 2, 1)).double()
    twin = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, 2, 1)).double()
    twin.load_state_dict(model.state_dict())
    assert not any(is_matrix(p) for p in model.parameters())
    ours = Muon(model.parameters(), lr=0.01)
    theirs = torch.optim.Adam(twin.parameters(), lr=0.01, betas=(0.9, 0.99))
    image = torch.randn(2, 1, 9, 9, dtype=torch.float64)
    for _ in range(5):
        for net, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            net(image).square().sum().backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-12, rtol=0)


def test_which_parameters_are_matrices():
    assert is_matrix(torch.zeros(64, 32, 3, 3))
    assert is_matrix(torch.zeros(MIN_SIZE, MIN_SIZE))
    assert is_matrix(torch.zeros(16, 2, 3, 3))  # 18 columns
    # A bias, a layer of two outputs, a depthwise convolution, a scalar, an empty tensor.
    for shape in ((64,), (2, 64, 3, 3), (64, 1, 5, 5), (), (0, 4)):
        assert not is_matrix(torch.zeros(shape))


def test_weight_decay_is_decoupled_from_the_gradient():
    for shape in ((16, 16), (16,)):
        weight = torch.nn.Parameter(torch.ones(shape))
        weight.grad = torch.zeros(shape)
        Muon([weight], lr=0.1, weight_decay=0.5).step()
        torch.testing.assert_close(weight.detach(), torch.full(shape, 0.95))


def test_muon_beats_adam_on_an_ill_conditioned_quadratic():
    """Curvatures differ by a factor of 1,000; both optimizers take the same number of steps."""
    curvature = torch.logspace(-3, 0, 16)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(3)))[0]
    goal = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))

    def left(kind: type[torch.optim.Optimizer]) -> float:
        weight = torch.nn.Parameter(torch.zeros(16, 16))
        optimizer = kind([weight], lr=0.2)
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 300)
            optimizer.zero_grad()
            (curvature * ((weight - goal) @ rotation).square()).sum().backward()
            optimizer.step()
        return (weight - goal).norm().item()

    assert left(Muon) < 0.1 * left(torch.optim.Adam)
