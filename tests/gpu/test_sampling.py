"""Sampling on an accelerator: the labels of the CPU, and no wait for the device inside the loop."""

from __future__ import annotations

import pytest
import torch

from stochseg.core import SAMPLERS
from stochseg.models import MODELS
from tests.support.devices import DEVICES, no_device_reads, on_accelerators
from tests.support.models import SMALLEST, few, images, lively

ON_CPU = ("analog-bits", "ccdm", "ccdm-fast+mixture", "ssn", "unet-ce")  # the contract suite covers the others
EVERY_MODEL = [(name, "cpu") for name in ON_CPU] + [case for name in SMALLEST for case in on_accelerators(name)]
# Models that decide on the host what to draw next.
HOST_DECIDES = {"pixelseg", "pixelseg+raster"}
ITERATIVE = [
    name for name in SMALLEST if "evaluations" in getattr(MODELS.get(name.partition("+")[0]), "sampling_choices", ())
]


@pytest.fixture(autouse=True)
def _full_precision():
    """Without TF32, which rounds inputs of convolutions to 10 bits."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def fraction_differing(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.cpu() != b.cpu()).float().mean().item()


@pytest.mark.parametrize(("name", "device"), EVERY_MODEL)
def test_labels_are_those_of_the_cpu(name, device):
    model, x = lively(name), images(2)
    options = {"n": 4, "seed": 1, **few(model)}
    expected = model.sample(x, **options)
    got = model.to(device).sample(x, **options)
    assert got.labels.device.type == got.mean.device.type == torch.device(device).type
    assert fraction_differing(expected.labels, got.labels) <= 0.02
    assert (got.mean.cpu() - expected.mean).abs().mean() <= 0.01


@pytest.mark.parametrize("noise", ["independent", "latin"])
@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
@pytest.mark.parametrize("device", DEVICES)
def test_every_sampler_draws_the_labels_of_the_cpu(device, sampler, noise):
    model, x = lively("ccdm-fast+mixture"), images(1)
    options = {"n": 3, "sampler": sampler, "noise": noise, "evaluations": 3}
    expected = model.sample(x, **options)
    assert fraction_differing(expected.labels, model.to(device).sample(x, **options).labels) <= 0.02


# The meta device, whose tensors have no values to read, stands for an accelerator on every machine.
@pytest.mark.parametrize(
    ("name", "device"),
    [case for name in ITERATIVE if name not in HOST_DECIDES for case in ((name, "meta"), *on_accelerators(name))],
)
def test_sampling_does_not_wait_for_the_device(name, device, monkeypatch):
    """Until all samples are drawn: the check of the result reads once per call."""
    monkeypatch.setattr("stochseg.models.base.check_finite", lambda samples: None)
    model, x = lively(name).to(device), images(2)
    model.sample(x, 3, **few(model))  # libraries and kernels are loaded at the first call, which may wait
    with no_device_reads(device):
        out = model.sample(x, 3, **few(model))
    assert out.labels.device.type == torch.device(device).type


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: bool((x > 0).all())])
def test_a_device_read_is_found(read):
    """With the meta device in place of an accelerator."""
    with pytest.raises(AssertionError, match="from the device"), no_device_reads("meta"):
        read(torch.zeros(2).to("meta"))


@pytest.mark.parametrize("device", DEVICES)
def test_samples_do_not_depend_on_the_batch(device):
    model, x = lively("ccdm").to(device), images(3)
    together = model.sample(x, 3, seed=2, evaluations=3).labels
    alone = model.sample(x[1:2], 3, seed=2, evaluations=3).labels
    assert fraction_differing(together[1:2], alone) <= 0.02
