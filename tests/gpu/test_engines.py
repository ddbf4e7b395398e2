"""Engines on an accelerator. On the CPU, compile takes minutes; tests/inference traces it there."""

from __future__ import annotations

import pytest
import torch

from stochseg.errors import UserError
from stochseg.inference import with_engine
from tests.support.devices import DEVICES, on_accelerators
from tests.support.models import images, lively

SHORT = {"num_timesteps": 20, "evaluations": 3}
ACCELERATED = {"ccdm": SHORT, "unet-ce": {}, "ccdm-fast": {**SHORT, "components": 2}}


def fraction_differing(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a != b).float().mean().item()


@pytest.mark.parametrize("name", sorted(ACCELERATED))
@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_draws_almost_the_labels_of_float32(device, name):
    model, x = lively(name, **ACCELERATED[name]).to(device), images(1, h=32, w=32)
    expected, got = model.sample(x, 4), with_engine(model, "bfloat16").sample(x, 4)
    assert got.mean.dtype == torch.float32
    assert fraction_differing(expected.labels, got.labels) <= 0.1


@pytest.mark.parametrize("device", on_accelerators())
def test_compile_draws_the_labels_of_eager(device):
    model = lively("unet-ce").to(device)
    compiled = with_engine(model, "compile")
    for x in (images(1), images(2, h=24, w=16)):
        assert fraction_differing(model.sample(x, 2).labels, compiled.sample(x, 2).labels) <= 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_cuda_graphs_draw_the_labels_of_eager_and_are_refused_elsewhere(device):
    model = lively("ccdm-fast", **ACCELERATED["ccdm-fast"]).to(device)
    if torch.device(device).type != "cuda":
        with pytest.raises(UserError, match=rf"cuda-graphs.*{device}"):
            with_engine(model, "cuda-graphs")
        return
    graphs = with_engine(model, "cuda-graphs")
    for x in (images(1), images(1), images(2)):
        assert fraction_differing(model.sample(x, 2).labels, graphs.sample(x, 2).labels) <= 0.02
