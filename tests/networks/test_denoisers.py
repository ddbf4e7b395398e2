"""ConcatUNet at any size and in any batch, and the condition it is given."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stochseg.networks import ConcatUNet, Condition, EncoderConfig, UNetConfig, make_encoder, pad_to_multiple
from stochseg.types import DatasetInfo

L, C = 3, 2
CONFIG = UNetConfig(base=8, multipliers=(1, 1, 2, 2), blocks=1, attention=(8,), head_channels=8)  # stride 8


@pytest.fixture(params=[None, "hog"])
def net(request) -> ConcatUNet:
    encoder = make_encoder(EncoderConfig(encoder=request.param), DatasetInfo(num_classes=L, image_channels=C))
    out = ConcatUNet(L, C, CONFIG, encoder)
    generator = torch.Generator().manual_seed(0)
    for parameter in out.parameters():
        parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return out.eval().requires_grad_(False)


def example(h: int, w: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image, x_t, t."""
    generator = torch.Generator().manual_seed(h * 100 + w)
    image = torch.randn(rows, C, h, w, generator=generator)
    return image, torch.randint(L, (rows, h, w), generator=generator), torch.arange(1, rows + 1) * 50


def by_hand(net: ConcatUNet, image: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The U-Net itself, on inputs that need no padding."""
    onehot = F.one_hot(x_t, L).movedim(-1, 1).float()
    features = () if net.encoder is None else (net.encoder(image),)
    return net.unet(torch.cat([onehot, image], 1), t, *features)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (33, 32), (8, 9), (16, 24)])
def test_any_size_works(net, size, rows):
    """A batch of one at one pixel included, whose deepest level is a single value a channel."""
    image, x_t, t = example(*size, rows)
    logits = net(x_t, t, net.encode(image))
    assert logits.shape == (rows, L, *size)
    assert bool(torch.isfinite(logits).all())
    assert logits.abs().max() > 0


@pytest.mark.parametrize("size", [(8, 8), (16, 24)])
def test_a_multiple_of_the_stride_is_untouched_by_padding(net, size):
    image, x_t, t = example(*size)
    assert torch.equal(net(x_t, t, net.encode(image)), by_hand(net, image, x_t, t))


def test_padding_and_crop_are_at_the_bottom_and_right(net):
    """The image goes on with its edge, the one-hot map with zeros, and the top left of the result is returned."""
    image, x_t, t = example(7, 13)
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


def test_logits_do_not_depend_on_the_neighbors_in_the_batch(net):
    image, x_t, t = example(12, 16, rows=5)
    condition = net.encode(image)
    together = net(x_t, t, condition)
    scale = together.std().item()
    for i in range(5):
        row = slice(i, i + 1)
        alone = net(x_t[row], t[row], net.encode(image[row]))
        torch.testing.assert_close(together[row], alone, atol=1e-4 * scale, rtol=0)


def test_logits_depend_on_all_three_inputs(net):
    image, x_t, t = example(16, 16)
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
    """Repeating rows of an encoding is encoding repeated images."""
    image, _, _ = example(12, 16)
    rows = torch.tensor([0, 0, 1, 1, 1])
    x_t = torch.randint(L, (5, 12, 16), generator=torch.Generator().manual_seed(5))
    t = torch.full((5,), 100)
    shared = net(x_t, t, net.encode(image)[rows])
    torch.testing.assert_close(shared, net(x_t, t, net.encode(image[rows])))


@pytest.mark.parametrize(("size", "padded"), [((1, 1), (4, 4)), ((4, 8), (4, 8)), ((5, 7), (8, 8))])
def test_pad_to_multiple(size, padded):
    x = torch.rand(1, 1, *size)
    out = pad_to_multiple(x, 4)
    assert out.shape[-2:] == padded
    assert torch.equal(out[..., : size[0], : size[1]], x)
    assert bool((out[..., size[0] :, -1] == x[..., -1, -1]).all())
    assert pad_to_multiple(x, 4, mode="constant").sum().item() == pytest.approx(x.sum().item())
