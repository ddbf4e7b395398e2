"""Mixing of slices: a convolution along the slice axis, written without moving axes."""

import torch
import torch.nn.functional as F

from stochseg.networks.blocks import SliceMixing
from stochseg.networks.shapes import fold, slice_wise, to_slices, unfold
from tests.support.models import perturb


def test_is_a_convolution_along_the_slices():
    layer = perturb(SliceMixing(8, 4)).double()
    x = torch.randn(2, 8, 5, 3, 4, dtype=torch.float64)
    slices = to_slices(x)
    flat, depth = fold(slices)
    found = to_slices(unfold(layer(flat, depth), slices))
    normed = slice_wise(lambda each: F.silu(layer.norm(each)), x)
    # The map "before" of slice d is for slice d - 1: it comes from above, the last place of the kernel.
    weight = torch.stack([layer.conv.weight[16:], layer.conv.weight[8:16], layer.conv.weight[:8]], dim=2)
    bias = layer.conv.bias.unflatten(0, (3, 8)).sum(0)
    padded = F.pad(normed, (0, 0, 0, 0, 1, 1), mode="replicate")
    expected = x + F.conv3d(padded, weight.flatten(3)[..., None], bias)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_reads_equal_slices_as_one():
    layer = perturb(SliceMixing(8, 4)).double()
    x = torch.randn(1, 8, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x.repeat(5, 1, 1, 1), 5), layer(x, 1).repeat(5, 1, 1, 1), rtol=1e-12, atol=1e-12)


def test_is_nothing_at_the_start():
    x = torch.randn(6, 8, 3, 4)
    assert torch.equal(SliceMixing(8, 4)(x, 3), x)
