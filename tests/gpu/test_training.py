"""Training on an accelerator: steps, precision, resuming, and the models that a run leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import stochseg.training.loop as loop
from stochseg.errors import UserError
from stochseg.models import load
from stochseg.training import train
from tests.support.devices import DEVICES
from tests.support.models import images

SHORT = ("lr=1e-3", "steps=4")


@pytest.fixture(autouse=True)
def _plain_pictures(monkeypatch):
    """Pictures are the slowest part of a tiny run."""
    monkeypatch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))


def losses(out: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {record["step"]: record["train/loss"] for record in records if "train/loss" in record}


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_repeats_the_losses_of_an_uninterrupted_one(device, tiny_run, tmp_path):
    train(tiny_run(*SHORT), tmp_path / "straight", device=device)
    train(tiny_run(*SHORT, "steps=2"), tmp_path / "resumed", device=device)
    train(tiny_run(*SHORT), tmp_path / "resumed", device=device, resume=True)
    straight, resumed = losses(tmp_path / "straight"), losses(tmp_path / "resumed")
    assert list(straight) == list(resumed) == [1, 2, 3, 4]
    assert all(math.isclose(straight[step], resumed[step], rel_tol=0.02) for step in straight)


@pytest.mark.parametrize("device", DEVICES)
def test_losses_are_those_of_the_cpu(device, tiny_run, tmp_path):
    """Batches, raters, time steps and noise do not depend on the device."""
    for place in ("cpu", device):
        train(tiny_run(*SHORT), tmp_path / f"on-{place}", device=place, resume=True)
    expected, got = losses(tmp_path / "on-cpu"), losses(tmp_path / f"on-{device}")
    assert all(math.isclose(expected[step], got[step], rel_tol=0.02) for step in expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_trains_a_model_of_float32(device, optimizer, tiny_run, tmp_path):
    if device == "cuda" and not torch.cuda.is_bf16_supported():
        pytest.skip("this GPU has no bfloat16")
    out = train(tiny_run(*SHORT, "precision=bfloat16", f"optimizer={optimizer}"), tmp_path / "run", device=device)
    assert all(map(math.isfinite, losses(out).values()))
    assert {parameter.dtype for parameter in load(out).parameters()} == {torch.float32}


@pytest.mark.parametrize("device", DEVICES)
def test_float16_trains_on_cuda_and_is_refused_elsewhere(device, tiny_run, tmp_path):
    config = tiny_run(*SHORT, "precision=float16")
    if torch.device(device).type != "cuda":
        with pytest.raises(UserError, match=rf"float16.*CUDA.*{device}"):
            train(config, tmp_path / "run", device=device)
        return
    out = train(config, tmp_path / "run", device=device)
    assert all(map(math.isfinite, losses(out).values()))


@pytest.mark.parametrize("device", DEVICES)
def test_a_trained_model_is_loaded_on_any_device(device, tiny_run, tmp_path):
    out = train(tiny_run(*SHORT), tmp_path / "run", device=device)
    here, there = load(out, device=device), load(out, device="cpu")
    assert here.device.type == torch.device(device).type
    a, b = (model.sample(images(1, h=8, w=8), 2).labels.cpu() for model in (here, there))
    assert (a != b).float().mean() <= 0.02
