"""A run in several processes."""

import os
import subprocess
import sys

import pytest
import torch

from stochseg.training.config import write_config
from tests.support.runs import records, values


def test_two_processes_train_like_one(tiny_run, tmp_path, straight):
    write_config(tiny_run("validation.every=2"), tmp_path / "two.yaml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "stochseg", "train", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    done = subprocess.run(
        [*launch, *command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240
    )
    assert done.returncode == 0, done.stderr
    for key, precision in (("train/loss", 1e-5), ("train/gradient_norm", 1e-3), ("train/lr", 1e-12)):
        assert values(tmp_path / "run", key) == pytest.approx(values(straight, key), rel=precision), key
    assert values(tmp_path / "run", "val/ged").keys() == {2, 4, 6}
    assert len(records(tmp_path / "run")) == len(records(straight))


SKEWED = """
import itertools, os, sys, types
from pathlib import Path

import torch
import stochseg.training.loop as loop
from stochseg.training.config import read_config

ticks, speed = itertools.count(), 1 + int(os.environ["RANK"])
loop.time = types.SimpleNamespace(perf_counter=lambda: speed * next(ticks))
fit = loop._Run.fit

def fit_and_keep(run):
    fit(run)
    weights = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
    torch.save({"step": run.progress.step, "weights": weights}, f"{sys.argv[2]}-{os.environ['RANK']}.pt")

loop._Run.fit = fit_and_keep
loop.train(read_config(Path(sys.argv[1])), sys.argv[2], device="cpu")
"""


def test_processes_with_different_clocks_take_the_same_steps(tiny_run, tmp_path):
    """A time limit of twelve seconds; a step takes one second in the first process and two in the second."""
    (tmp_path / "skewed.py").write_text(SKEWED)
    write_config(tiny_run("minutes=0.2", "steps=1000"), tmp_path / "two.yaml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(tmp_path / name) for name in ("skewed.py", "two.yaml", "run")]
    done = subprocess.run(
        [*launch, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FORCE_COLOR": ""},  # a progress bar would look at the clock
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"run-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["step"] == two["step"] == 8
    assert torch.equal(one["weights"], two["weights"])
