"""The U-Net: its initial output, its inputs, its shape, and impossible configs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from stochseg.errors import UserError
from stochseg.networks import UNet, UNetConfig
from stochseg.networks.blocks import SelfAttention, group_norm
from tests.support.networks import randomized

SMALL = UNetConfig(base=8, multipliers=(1, 2, 2, 3), blocks=1, attention=(4, 8), head_channels=8)


def inputs(channels: int, size: int = 16, rows: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, channels, size, size, generator=generator, dtype=torch.float64)


def network(*arguments, **options) -> UNet:
    """A U-Net in float64, where a path without influence gives differences below 1e-15."""
    return randomized(UNet(*arguments, **options).double())


def test_initial_logits_are_zero():
    torch.manual_seed(0)
    net = UNet(4, 3, SMALL)
    logits = net(inputs(4).float(), torch.tensor([1, 250]))
    assert logits.shape == (2, 3, 16, 16)
    assert torch.equal(logits, torch.zeros_like(logits))


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        UNetConfig(base=4, multipliers=(1, 2)),
        UNetConfig(base=8, multipliers=(1, 2, 2)),
        UNetConfig(base=16, multipliers=(1, 2, 2)),
        UNetConfig(base=12, multipliers=(1, 2, 3)),
        UNetConfig(),
    ],
    ids=lambda c: f"{c.base}-{c.multipliers}",
)
def test_the_step_changes_the_logits(config):
    """Of narrow networks too: with one channel per group, GroupNorm would remove the step."""
    net = network(2, 2, config)
    with torch.no_grad():
        x = inputs(2, size=2 * config.stride, rows=1)
        early, late = net(x, torch.tensor([1])), net(x, torch.tensor([250]))
    assert (early - late).std() > 1e-3 * early.std()


@pytest.mark.parametrize(("base", "multipliers"), [(32, (1,)), (32, (1, 1, 1)), (16, (2, 2)), (1, (1,))])
def test_a_network_that_cannot_depend_on_the_step_is_refused(base, multipliers):
    config = UNetConfig(base=base, multipliers=multipliers)
    with pytest.raises(UserError, match="hides the step t.*wider"):
        UNet(2, 2, config)
    UNet(2, 2, config, timed=False)


def test_each_row_has_its_own_step():
    net = network(2, 2, SMALL)
    x = inputs(2)[:1].repeat(2, 1, 1, 1)
    with torch.no_grad():
        both = net(x, torch.tensor([7, 200]))
        alone = torch.cat([net(x[:1], torch.tensor([t])) for t in (7, 200)])
    torch.testing.assert_close(both, alone, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("feature_channels", [0, 5])
def test_gradients_reach_every_parameter(timed, feature_channels):
    net = network(4, 3, SMALL, feature_channels=feature_channels, timed=timed)
    features = torch.randn(2, 5, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logits = net(inputs(4), torch.tensor([3, 200]) if timed else None, features if feature_channels else None)
    target = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (logits * target).sum().backward()
    dead = [name for name, p in net.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9]
    assert dead == []


def test_features_change_the_logits():
    net = network(4, 3, SMALL, feature_channels=5)
    t = torch.tensor([9, 9])
    zeros = torch.zeros(2, 5, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        assert (net(inputs(4), t, zeros) - net(inputs(4), t, zeros + 1)).abs().max() > 1e-6


@pytest.mark.parametrize("block", [1, 2])
def test_features_join_the_configured_block(block):
    net = UNet(4, 3, UNetConfig(base=8, multipliers=(1, 1, 1, 2), feature_block=block), feature_channels=5)
    widths = [[layer.block.first[2].in_channels for layer in stage.blocks] for stage in net.encoder]
    assert widths == [[8, 8], [8, 8], [8, 8], [13, 16] if block == 1 else [8, 21]]


def test_a_block_for_features_that_does_not_exist_is_refused():
    config = UNetConfig(base=8, multipliers=(1, 1, 1, 2), feature_block=3)
    with pytest.raises(UserError, match=r"feature_block.*1 to 2.*got 3"):
        UNet(4, 3, config, feature_channels=5)
    UNet(4, 3, config)


def test_a_network_without_steps_has_no_time_parameters():
    timed, untimed = UNet(4, 3, SMALL), UNet(4, 3, SMALL, timed=False)
    with_time = {name for name, _ in timed.named_parameters()}
    without = {name for name, _ in untimed.named_parameters()}
    assert without < with_time
    assert all("time" in name for name in with_time - without)
    assert not any("time" in name for name in without)
    assert untimed(inputs(4).float()).shape == (2, 3, 16, 16)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_features_need_a_level_at_an_eighth(levels):
    config = UNetConfig(base=8, multipliers=(1,) * levels)
    with pytest.raises(UserError, match=rf"multipliers.* {levels} levels .*1/{2 ** (levels - 1)};"):
        UNet(4, 3, config, feature_channels=5)
    UNet(4, 3, config)


def test_attention_is_at_the_configured_factors_and_in_the_middle():
    config = UNetConfig(base=8, multipliers=(1, 1, 1, 1), blocks=2, attention=(2, 8), head_channels=4)
    net = UNet(2, 2, config)

    def attended(stages) -> list[list[bool]]:
        return [[hasattr(block.attention, "qkv") for block in stage.blocks] for stage in stages]

    assert attended(net.encoder) == [[False] * 2, [True] * 2, [False] * 2, [True] * 2]
    assert attended(net.decoder) == [[True] * 3, [False] * 3, [True] * 3, [False] * 3]
    assert [hasattr(block.attention, "qkv") for block in net.middle] == [True, False]
    assert net.middle[0].attention.heads == 2


def test_attention_is_the_softmax_of_all_pairs_without_storing_them():
    torch.manual_seed(0)
    attention = SelfAttention(16, 8, groups=4).double()
    torch.nn.init.normal_(attention.out.weight)
    x = torch.randn(2, 16, 5, 6, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises if the layout of q, k and v does not allow it
        found = attention(x)
    q, k, v = attention.qkv(attention.norm(x)).flatten(2).chunk(3, 1)
    expected = []
    for head in (slice(0, 8), slice(8, 16)):
        scores = torch.einsum("bcq,bck->bqk", q[:, head], k[:, head]) / 8**0.5
        expected.append(torch.einsum("bqk,bck->bcq", scores.softmax(-1), v[:, head]))
    torch.testing.assert_close(found, x + attention.out(torch.cat(expected, 1).view_as(x)))


@pytest.mark.parametrize(
    ("channels", "groups", "expected"),
    [(64, 32, 32), (32, 32, 32), (48, 32, 16), (16, 32, 4), (8, 32, 2), (2, 32, 1), (64, 4, 4), (16, 4, 4), (8, 4, 2)],
)
def test_groups_of_the_normalization(channels, groups, expected):
    """The paper's 32 from 32 channels on; groups of at least 4 channels in narrower layers."""
    assert group_norm(channels, groups).num_groups == expected


def test_the_number_of_groups_does_not_change_the_parameters():
    few, many = (UNet(3, 2, UNetConfig(base=32, multipliers=(1, 2), groups=g)) for g in (4, 32))
    assert {m.num_groups for m in few.modules() if isinstance(m, torch.nn.GroupNorm)} == {4}
    assert {m.num_groups for m in many.modules() if isinstance(m, torch.nn.GroupNorm)} == {32}
    assert sum(p.numel() for p in few.parameters()) == sum(p.numel() for p in many.parameters())
