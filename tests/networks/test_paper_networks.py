"""Parameter counts of the paper's networks."""

from __future__ import annotations

import pytest
import torch

from stochseg.networks import ConcatUNet, ImageEncoder, UNetConfig


class DinoShaped(ImageEncoder):
    """The shape of the paper's ViT-S/8, 384 channels at 1/8, without parameters."""

    channels = 384


def network(labels: int, channels: int, base: int, multipliers: tuple[float, ...], dino: bool = False) -> ConcatUNet:
    with torch.device("meta"):  # shapes without memory
        config = UNetConfig(base=base, multipliers=multipliers)
        return ConcatUNet(labels, channels, config, DinoShaped() if dino else None)


def count(net: ConcatUNet) -> int:
    return sum(p.numel() for p in net.parameters())


CITYSCAPES_30M = (64, (1, 1, 2, 2, 4, 4))


@pytest.mark.parametrize(
    ("labels", "channels", "base", "multipliers", "dino", "parameters"),
    [
        pytest.param(2, 1, 32, (1, 2, 2, 4, 5), False, 9_056_610, id="LIDC 9M"),
        pytest.param(2, 1, 64, (1, 2, 3.5, 4, 5), False, 41_192_674, id="LIDC 41M"),
        pytest.param(20, 3, *CITYSCAPES_30M, False, 30_118_484, id="Cityscapes 30M"),
        pytest.param(20, 3, *CITYSCAPES_30M, True, 30_627_284, id="Cityscapes 30M, DINO features"),
        pytest.param(20, 3, 32, (1, 1, 2, 2, 4, 4), False, 7_552_308, id="Cityscapes 7.5M"),
        pytest.param(20, 3, 32, (1, 2, 3, 4), False, 5_356_564, id="Cityscapes 5.4M"),
    ],
)
def test_parameter_counts(labels, channels, base, multipliers, dino, parameters):
    assert count(network(labels, channels, base, multipliers, dino)) == parameters


def test_the_count_that_is_published_rounded():
    assert round(count(network(20, 3, 64, (1, 2, 3, 4))) / 1e6, 2) == 21.36


@pytest.mark.parametrize(("base", "multipliers"), [CITYSCAPES_30M, (32, (1, 2, 3, 4))])
def test_without_the_void_label_only_the_first_and_last_convolution_shrink(base, multipliers):
    with_void, without = network(20, 3, base, multipliers), network(19, 3, base, multipliers)
    one_input_channel = 3 * 3 * base
    one_output_channel = 3 * 3 * base + 1
    assert count(with_void) - count(without) == one_input_channel + one_output_channel
    shapes = [{name: p.shape for name, p in net.named_parameters()} for net in (with_void, without)]
    changed = {name for name, shape in shapes[0].items() if shape != shapes[1][name]}
    assert changed == {"unet.stem.weight", "unet.head.2.weight", "unet.head.2.bias"}
