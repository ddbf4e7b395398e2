"""Padding, cropping and one-hot coding of images and volumes."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from stochseg.networks.shapes import crop, one_hot, pad_to_multiple

SIZES = [
    ((1, 1), (4, 4)),
    ((4, 8), (4, 8)),
    ((5, 7), (8, 8)),
    ((3, 4, 6), (3, 4, 8)),  # of a volume, height and width only
]


@pytest.mark.parametrize(("size", "padded"), SIZES)
def test_padding_repeats_the_edge_at_the_end_of_height_and_width(size, padded):
    x = torch.rand(2, 3, *size)
    out = pad_to_multiple(x, 4)
    assert out.shape == (2, 3, *padded)
    for index in product(*map(range, padded)):
        nearest = tuple(min(i, n - 1) for i, n in zip(index, size, strict=True))
        assert torch.equal(out[(..., *index)], x[(..., *nearest)])


@pytest.mark.parametrize(("size", "padded"), SIZES)
def test_constant_padding_adds_zeros_and_crop_removes_them(size, padded):
    x = torch.rand(2, 3, *size)
    out = pad_to_multiple(x, 4, mode="constant")
    assert out.shape == (2, 3, *padded)
    assert out.sum().item() == pytest.approx(x.sum().item(), rel=1e-5)
    assert torch.equal(crop(out, size), x)


def test_a_multiple_is_returned_as_it_is():
    x = torch.rand(1, 1, 8, 4)
    assert pad_to_multiple(x, 4) is x


@pytest.mark.parametrize("size", [(5,), (3, 4), (2, 3, 4)])
def test_one_hot_marks_the_label_of_each_pixel(size):
    labels = torch.randint(3, (2, *size))
    onehot = one_hot(labels, 3, torch.float64)
    assert onehot.shape == (2, 3, *size)
    assert onehot.dtype == torch.float64
    assert torch.equal(onehot.argmax(1), labels)
    assert torch.equal(onehot.sum(1), torch.ones_like(onehot[:, 0]))
