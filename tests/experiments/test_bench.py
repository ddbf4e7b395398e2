"""`stochseg bench`: what it derives from its measurements. The command itself: tests/test_cli.py."""

import math
import sys
from contextlib import contextmanager

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from stochseg.experiments import bench
from stochseg.experiments.bench import Case, cost, peak_memory
from stochseg.models import create
from stochseg.models.sampling import SamplingOptions

SMALL = {
    "ccdm": {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": [], "num_timesteps": 40},
    "ccdm-fast": {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 40},
}


@pytest.mark.parametrize(("name", "module"), [("ccdm", "denoiser.unet"), ("ccdm-fast", "denoiser.label_tower")])
def test_all_steps_are_told_from_a_few(monkeypatch, name, module):
    """With a clock that counts rows through the network: an image tower, and a first step shared by all samples, are
    not multiplied."""
    model = create(name, 2, 1, **SMALL[name]).eval()
    rows = 0

    def count(_, inputs, __):
        nonlocal rows
        rows += len(inputs[0])

    model.get_submodule(module).register_forward_hook(count)

    def clock(work, repeats):
        before = rows
        work()
        return float(rows - before), float(rows - before)

    monkeypatch.setattr(bench, "median_seconds", clock)
    monkeypatch.setattr(bench, "gemm_gflops", lambda device: 1.0)
    cases = [Case(name, model, SamplingOptions(evaluations=count)) for count in (1, 4, 40)]
    found = [cost(case, (8, 8))["core_seconds_all_steps"] for case in cases]
    whole = 40 * 16 if name == "ccdm" else 1 + 39 * 16
    assert found == ["", whole, whole]


def test_maps_through_the_network_are_counted_for_all_samples(monkeypatch):
    monkeypatch.setattr(bench, "gemm_gflops", lambda device: 1.0)
    for name, maps in (("ccdm", 4 * 16), ("ccdm-fast", 1 + 3 * 16)):
        model = create(name, 2, 1, **SMALL[name]).eval()
        row = cost(Case(name, model, SamplingOptions(evaluations=4)), (8, 8), repeats=1)
        assert (row["evaluations"], row["evaluations_all_samples"]) == (4, maps)
    one_pass = Case("ssn", create("ssn", 2, 1, base=8), SamplingOptions(n=2))
    assert cost(one_pass, (8, 8), repeats=1)["evaluations_all_samples"] == ""


def test_where_memory_cannot_be_read_the_rest_is_measured(monkeypatch):
    @contextmanager
    def unknown(device):
        yield {"rise": math.nan, "process": math.nan}

    monkeypatch.setattr(bench, "peak_memory", unknown)
    case = Case("ccdm", create("ccdm", 2, 1, **SMALL["ccdm"]), SamplingOptions(n=2, evaluations=1))
    row = cost(case, (8, 8), repeats=1)
    assert math.isnan(row["process_megabytes"])
    assert row["seconds"] > 0


def test_attention_is_counted():
    """Twice n² d multiplications a head: once for the weights, once for the mean."""
    with FlopCounterMode(display=False, custom_mapping=bench.ATTENTION) as counter:
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 2, 4, 64, 16))
    assert counter.get_total_flops() == 2 * 2 * (2 * 4 * 64 * 64 * 16)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory of a process is read from /proc")
def test_memory_that_was_freed_before_does_not_hide_a_rise():
    for _ in range(3):
        [torch.ones(2**20) for _ in range(16)]
    with peak_memory(torch.device("cpu")) as found:
        [torch.ones(2**20) for _ in range(16)]
    assert 60 < found["rise"] < 80
    assert found["process"] > found["rise"] + 50, "libraries alone are larger"
