"""Profiling: floating-point operations of attention, memory of the process."""

import sys

import pytest
import torch

from stochseg.experiments.profiling import flop_counter, peak_memory


def test_attention_is_counted():
    """2 n² d multiplications and additions per head for the weights, and as many for the mean."""
    with flop_counter() as counter:
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 2, 4, 64, 16))
    assert counter.get_total_flops() == 2 * 2 * (2 * 4 * 64 * 64 * 16)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory of a process is read from /proc")
def test_memory_freed_earlier_does_not_hide_a_rise():
    for _ in range(3):
        [torch.ones(2**20) for _ in range(16)]
    with peak_memory(torch.device("cpu")) as use:
        [torch.ones(2**20) for _ in range(16)]
    assert 50 < use.rise < 80
    assert use.peak > use.rise + 50, "libraries alone are larger"
