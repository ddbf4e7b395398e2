"""Benchmark of sampling: counts, extrapolation, and the table. The command: tests/cli/test_bench.py."""

import math
from contextlib import contextmanager

import pytest
from rich.console import Console

from stochseg.experiments import bench
from stochseg.experiments.bench import Case, bench_table, cost
from stochseg.experiments.profiling import MemoryUse
from stochseg.models import create
from stochseg.models.sampling import SamplingOptions

SMALL = {
    "ccdm": {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": [], "num_timesteps": 40},
    "ccdm-fast": {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 40},
}


@pytest.mark.parametrize(("name", "module"), [("ccdm", "denoiser.unet"), ("ccdm-fast", "denoiser.label_tower")])
def test_the_time_of_all_steps_is_extrapolated_from_a_few(monkeypatch, name, module):
    """The clock counts rows through the network. A first step shared by all samples is not multiplied."""
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


def test_maps_through_the_network_are_counted_over_all_samples(monkeypatch):
    monkeypatch.setattr(bench, "gemm_gflops", lambda device: 1.0)
    for name, maps in (("ccdm", 4 * 16), ("ccdm-fast", 1 + 3 * 16)):
        model = create(name, 2, 1, **SMALL[name]).eval()
        row = cost(Case(name, model, SamplingOptions(evaluations=4)), (8, 8), repeats=1)
        assert (row["evaluations"], row["evaluations_all_samples"]) == (4, maps)
    one_pass = Case("ssn", create("ssn", 2, 1, base=8), SamplingOptions(n=2))
    assert cost(one_pass, (8, 8), repeats=1)["evaluations_all_samples"] == 1


def test_unknown_memory_does_not_prevent_the_other_measurements(monkeypatch):
    @contextmanager
    def unknown(device):
        yield MemoryUse()

    monkeypatch.setattr(bench, "peak_memory", unknown)
    case = Case("ccdm", create("ccdm", 2, 1, **SMALL["ccdm"]), SamplingOptions(n=2, evaluations=1))
    row = cost(case, (8, 8), repeats=1)
    assert math.isnan(row["process_megabytes"])
    assert row["seconds"] > 0


def test_the_table_shows_what_varies_and_explains_its_columns():
    row = dict.fromkeys(bench.COLUMNS, 1.5) | {"model": "m", "device": "cpu", "samples": 16, "evaluations": 5}
    row |= {"sampler": "sticky", "grid": "even", "engine": "eager", "height": 8, "width": 8, "ged_16": ""}
    console = Console(width=200)
    with console.capture() as capture:
        console.print(bench_table([row, row | {"sampler": "ddim", "ged_16": 0.25}]))
    text = capture.get()
    assert "m@5 sticky" in text
    assert "m@5 ddim" in text
    assert "even" not in text, "the same for all rows"
    assert "0.2500" in text
    assert "GFLOP: Floating-point operations" in text
