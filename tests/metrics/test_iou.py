"""IoU between label maps against sets of pixels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from stochseg.errors import UserError
from stochseg.metrics import class_iou_blocks, ged, ged_from_iou, iou_blocks, pairwise_iou, without_void
from tests.support.label_maps import classes, few_examples, maps, seeds, sizes, slow_iou, spaces


@few_examples
@given(seeds, sizes, sizes, classes, spaces)
def test_pairwise_iou_equals_sets_of_pixels(seed, n, m, num_classes, space):
    a, b = maps(seed, 2, n, num_classes, space), maps(seed + 1, 2, m, num_classes, space)
    expected = [[[slow_iou(s, y, num_classes) for y in b[i]] for s in a[i]] for i in range(2)]
    torch.testing.assert_close(
        pairwise_iou(a, b, num_classes), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


@few_examples
@given(seeds, sizes, sizes, classes, spaces)
def test_class_blocks_equal_the_blocks_of_each_class_as_a_mask(seed, n, k, num_classes, space):
    samples, raters = maps(seed, 2, n, num_classes, space), maps(seed + 1, 2, k, num_classes, space)
    found = class_iou_blocks(samples, raters, num_classes)
    assert len(found) == num_classes - 1
    for label, blocks in enumerate(found, start=1):
        masks = [[[slow_iou(s == label, y == label, 2) for y in raters[i]] for s in samples[i]] for i in range(2)]
        torch.testing.assert_close(blocks.samples_raters, torch.tensor(masks, dtype=torch.float64), rtol=0, atol=1e-12)
    alone = torch.stack([ged_from_iou(*blocks) for blocks in found])
    torch.testing.assert_close(alone.mean(0), ged(samples, raters, num_classes), rtol=0, atol=1e-12)


def test_iou_of_empty_maps():
    empty = torch.zeros(1, 1, 4, 4, dtype=torch.int64)
    corner = empty.clone()
    corner[..., 0, 0] = 1
    assert pairwise_iou(empty, empty, 2).item() == 1
    assert pairwise_iou(empty, corner, 2).item() == 0
    assert pairwise_iou(empty, corner, 3).item() == 0.5  # class 2 is empty in both
    assert pairwise_iou(corner, corner, 3).item() == 1


INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type_gives_the_same(dtype):
    a, b = maps(0, 1, 3, 2), maps(1, 1, 2, 2)
    assert torch.equal(pairwise_iou(a.to(dtype), b.to(dtype), 2), pairwise_iou(a, b, 2))


def test_more_classes_than_a_byte_holds():
    a = torch.tensor([[[[0, 256, 299, 299]]]])
    b = torch.tensor([[[[0, 256, 299, 43]]]])  # 299 and 43 are equal modulo 256
    both_empty = 299 - 3  # all foreground classes except 43, 256 and 299
    assert pairwise_iou(a, b, 300).item() == pytest.approx((both_empty + 0 + 1 + 0.5) / 299, abs=1e-12)


def test_maps_need_not_be_contiguous():
    a, b = maps(0, 2, 3, 3), maps(1, 2, 2, 3)
    turned = pairwise_iou(a.transpose(2, 3), b.transpose(2, 3), 3)
    assert torch.equal(turned, pairwise_iou(a, b, 3))


def test_autocast_does_not_change_the_counts():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(2, (1, 1, 64, 64), generator=generator) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = pairwise_iou(a, b, 2).item()
    assert got == pytest.approx((a & b).sum().item() / (a | b).sum().item(), abs=1e-12)


def test_counts_stay_exact_beyond_float32():
    full = torch.ones(1, 1, 4096, 4097, dtype=torch.uint8)
    holes = full.clone()
    holes[..., 0, :3] = 0
    pixels = full.numel()
    assert pixels > 2**24
    assert pairwise_iou(full, holes, 2).item() == pytest.approx((pixels - 3) / pixels, rel=0, abs=1e-13)


@pytest.mark.parametrize("n", [0, 11])
def test_blocks_reject_more_samples_than_they_have(n):
    blocks = iou_blocks(maps(0, 1, 10, 2), maps(1, 1, 4, 2), 2)
    with pytest.raises(UserError, match=rf"first\({n}\): expected 1 to 10"):
        blocks.first(n)


def test_void_adds_nothing_to_the_scores():
    """A map that is perfect wherever the raters are not void scores as perfect."""
    generator = torch.Generator().manual_seed(0)
    raters = torch.randint(3, (2, 2, 6, 6), generator=generator)
    mask = torch.rand(raters.shape, generator=generator) < 0.8
    labeled = mask.all(1, keepdim=True)
    samples = torch.where(labeled, raters, torch.randint(3, raters.shape, generator=generator))
    assert ged(*without_void(samples, raters, mask), 3).abs().max() < 1e-12
    assert (ged(samples, raters, 3) > 0.01).all()
    assert all(a is b for a, b in zip(without_void(samples, raters, None), (samples, raters), strict=True))
