"""ConcatUNet at any size and in any batch, and its condition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stochseg.networks import ConcatUNet, Condition, EncoderConfig, UNetConfig, make_encoder
from stochseg.types import DatasetInfo
from tests.support.networks import noisy_labels, randomized

L, C = 3, 2
CONFIG = UNetConfig(base=8, multipliers=(1, 1, 2, 2), blocks=1, attention=(8,), head_channels=8)  # stride 8


@pytest.fixture(params=[None, "hog"])
def net(request) -> ConcatUNet:
    encoder = make_encoder(EncoderConfig(encoder=request.param), DatasetInfo(num_classes=L, image_channels=C))
    return randomized(ConcatUNet(L, C, CONFIG, encoder)).eval().requires_grad_(False)


def by_hand(net: ConcatUNet, image: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The U-Net alone, on inputs that need no padding."""
    onehot = F.one_hot(x_t, L).movedim(-1, 1).float()
    features = () if net.encoder is None else (net.encoder(image),)
    return net.unet(torch.cat([onehot, image], 1), t, *features)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (33, 32), (8, 9), (16, 24)])
def test_any_size_works(net, size, rows):
    """Even one image of one pixel, whose deepest level is a single value per channel."""
    image, x_t, t = noisy_labels(L, C, *size, rows)
    logits = net(x_t, t, net.encode(image))
    assert logits.shape == (rows, L, *size)
    assert bool(torch.isfinite(logits).all())
    assert logits.abs().max() > 0


@pytest.mark.parametrize("size", [(8, 8), (16, 24)])
def test_a_multiple_of_the_stride_is_not_padded(net, size):
    image, x_t, t = noisy_labels(L, C, *size)
    assert torch.equal(net(x_t, t, net.encode(image)), by_hand(net, image, x_t, t))


def test_padding_and_crop_are_at_the_bottom_and_right(net):
    """The image is extended by its edge, the one-hot map by zeros, and the top left of the result is returned."""
    image, x_t, t = noisy_labels(L, C, 7, 13)
    rows, columns = torch.arange(8).clamp(max=6), torch.arange(16).clamp(max=12)
    padded = image[:, :, rows][..., columns]
    onehot = torch.zeros(2, L, 8, 16)
    for b in range(2):
        for i in range(7):
            for j in range(13):
                onehot[b, x_t[b, i, j], i, j] = 1
    features = () if net.encoder is None else (net.encoder(padded),)
    expected = net.unet(torch.cat([onehot, padded], 1), t, *features)[..., :7, :13]
    torch.testing.assert_close(net(x_t, t, net.encode(image)), expected)


def test_logits_do_not_depend_on_the_rest_of_the_batch(net):
    image, x_t, t = noisy_labels(L, C, 12, 16, rows=5)
    condition = net.encode(image)
    together = net(x_t, t, condition)
    scale = together.std().item()
    for i in range(5):
        row = slice(i, i + 1)
        alone = net(x_t[row], t[row], net.encode(image[row]))
        torch.testing.assert_close(together[row], alone, atol=1e-4 * scale, rtol=0)


def test_logits_depend_on_all_three_inputs(net):
    image, x_t, t = noisy_labels(L, C, 16, 16)
    logits = net(x_t, t, net.encode(image))
    for other in (
        net((x_t + 1) % L, t, net.encode(image)),
        net(x_t, t + 100, net.encode(image)),
        net(x_t, t, net.encode(image.flip(-1))),
    ):
        assert (logits - other).abs().max() > 1e-3 * logits.std()


def test_condition_rows_may_repeat_and_keep_the_size():
    condition = Condition((torch.arange(3.0).reshape(3, 1, 1, 1), torch.arange(6.0).reshape(3, 2, 1, 1)), (5, 7))
    picked = condition[torch.tensor([2, 0, 0, 1])]
    assert picked.size == (5, 7)
    assert picked.tensors[0].flatten().tolist() == [2, 0, 0, 1]
    assert picked.tensors[1].flatten(1).tolist() == [[4, 5], [0, 1], [0, 1], [2, 3]]


def test_samples_of_one_image_share_its_condition(net):
    """Repeated rows of an encoding equal the encoding of repeated images."""
    image, _, _ = noisy_labels(L, C, 12, 16)
    rows = torch.tensor([0, 0, 1, 1, 1])
    x_t = torch.randint(L, (5, 12, 16), generator=torch.Generator().manual_seed(5))
    t = torch.full((5,), 100)
    shared = net(x_t, t, net.encode(image)[rows])
    torch.testing.assert_close(shared, net(x_t, t, net.encode(image[rows])))
