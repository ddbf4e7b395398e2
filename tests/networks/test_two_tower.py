"""The two-tower denoiser at any size, and what each tower is for."""

from __future__ import annotations

import pytest
import torch

from stochseg.errors import UserError
from stochseg.networks import TwoTower, TwoTowerConfig

L, C = 3, 2
SHAPE = {"tower": (8, 16, 16), "light": (8, 8), "tower_blocks": 1, "head_channels": 8}


def lively(**config) -> TwoTower:
    """A network whose output depends on everything it can depend on."""
    net = TwoTower(L, C, TwoTowerConfig(**{**SHAPE, **config}))
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return net.eval().requires_grad_(False)


def example(h: int, w: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(h * 100 + w)
    image = torch.randn(rows, C, h, w, generator=generator)
    return image, torch.randint(L, (rows, h, w), generator=generator), torch.arange(1, rows + 1) * 50


@pytest.mark.parametrize("patch", [1, 2, 4])
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (33, 32), (16, 24)])
def test_any_size_works(size, patch):
    net = lively(patch=patch)
    image, x_t, t = example(*size)
    logits = net(x_t, t, net.encode(image))
    assert logits.shape == (2, L, *size)
    assert bool(torch.isfinite(logits).all())
    assert logits.abs().max() > 0


def test_logits_depend_on_all_three_inputs_and_on_no_neighbor():
    net = lively()
    image, x_t, t = example(16, 16, rows=3)
    logits = net(x_t, t, net.encode(image))
    for other in (
        net((x_t + 1) % L, t, net.encode(image)),
        net(x_t, t + 100, net.encode(image)),
        net(x_t, t, net.encode(image.flip(-1))),
    ):
        assert (logits - other).abs().max() > 1e-3 * logits.std()
    alone = net(x_t[1:2], t[1:2], net.encode(image[1:2]))
    torch.testing.assert_close(logits[1:2], alone, atol=1e-4 * logits.std().item(), rtol=0)


def test_a_pixel_of_the_labels_reaches_the_whole_map():
    """Modes are decisions about the whole map: attention at the coarsest level carries them everywhere."""
    net = lively()
    image, x_t, t = example(64, 64, rows=1)
    changed = x_t.clone()
    changed[0, 0, 0] = (x_t[0, 0, 0] + 1) % L
    condition = net.encode(image)
    difference = (net(x_t, t, condition) - net(changed, t, condition)).abs().amax(1)[0]
    assert (difference > 0).float().mean() > 0.9


def test_components_are_a_mixture_whose_marginal_is_the_output():
    net = lively(components=4)
    image, x_t, t = example(9, 10)
    condition = net.encode(image)
    log_share, logits = net.propose(x_t, t, condition)
    assert log_share.shape == (2, 4)
    assert logits.shape == (2, 4, L, 9, 10)
    expected = torch.einsum("bm,bmlhw->blhw", log_share.exp(), logits.softmax(2))
    torch.testing.assert_close(net(x_t, t, condition).softmax(1), expected, atol=1e-6, rtol=1e-4)
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3, "components that are all alike show nothing"


def test_fresh_components_differ():
    torch.manual_seed(0)
    net = TwoTower(L, C, TwoTowerConfig(**SHAPE, components=4))
    image, x_t, t = example(8, 8)
    _, logits = net.propose(x_t, t, net.encode(image))
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3


def test_a_tower_of_fewer_levels_than_the_denoiser_is_refused():
    with pytest.raises(UserError, match=r"1 level\(s\) and the denoiser 2"):
        TwoTower(L, C, TwoTowerConfig(tower=(8,), light=(8, 8)))
