"""A run in several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stochseg.training.config import write_config
from tests.support.runs import assert_same_run, records, values

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*options: object) -> list[str]:
    """A command that starts two processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *options]
    return [str(word) for word in launch]


@pytest.fixture(scope="module")
def two(tiny_run, tmp_path_factory):
    """An uninterrupted run of six steps in two processes."""
    out = tmp_path_factory.mktemp("two")
    write_config(tiny_run("validation.every=2"), out / "two.yaml")
    command = torchrun("-m", "stochseg", "train", out / "two.yaml", "--out", out / "run", "--device", "cpu")
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
    assert done.returncode == 0, done.stderr
    return out / "run"


def test_two_processes_train_like_one(two, straight):
    for key, precision in (("train/loss", 1e-5), ("train/gradient_norm", 1e-3), ("train/lr", 1e-12)):
        assert values(two, key) == pytest.approx(values(straight, key), rel=precision), key
    assert values(two, "val/ged").keys() == {2, 4, 6}
    assert len(records(two)) == len(records(straight))


MORTAL = """
import os, signal, sys
from pathlib import Path

import stochseg.training.loop as loop
from stochseg.training import run_folder
from stochseg.training.config import read_config

step = loop._Run._step
life, rank = (int(os.environ[key]) for key in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
print("life", life, flush=True)

def mortal(run, *arguments):
    if (life, rank, run.progress.step) in ((0, 1, 3), (1, 0, 5)):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(run, *arguments)

loop._Run._step = mortal
if rank == 1:  # as if this machine did not see the newest checkpoint
    run_folder.list_checkpoints = lambda out: [out / "last-1"]
loop.train(read_config(Path(sys.argv[1])), sys.argv[2], device="cpu")
"""


def test_killed_processes_are_replaced_and_the_run_ends_as_an_undisturbed_one(tiny_run, tmp_path, two):
    """First the second process dies, later the first one, which holds the lock and writes the checkpoints.

    Which of them is the newest, the first process decides for both.
    """
    (tmp_path / "mortal.py").write_text(MORTAL)
    write_config(tiny_run("validation.every=2", "save_every=2"), tmp_path / "two.yaml")
    script = [str(tmp_path / name) for name in ("mortal.py", "two.yaml", "run")]
    command = torchrun("--max-restarts", 2, "--monitor-interval", 0.1, *script)
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
    assert done.returncode == 0, done.stderr
    assert {line for line in done.stdout.splitlines() if "life" in line} == {"life 0", "life 1", "life 2"}
    assert_same_run(tmp_path / "run", two)
    assert sorted(path.name for path in (tmp_path / "run").glob(".*")) == []
    commands = (file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists())
    assert not [words for words in commands if script[0].encode() in words], "orphans"


SKEWED = """
import itertools, os, sys
from pathlib import Path

import torch
import stochseg.training.loop as loop
from stochseg.training.config import read_config

ticks, speed = itertools.count(), 1 + int(os.environ["RANK"])
loop.CLOCKS["wall"] = lambda: speed * next(ticks)
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
    done = subprocess.run(
        torchrun(*(tmp_path / name for name in ("skewed.py", "two.yaml", "run"))),
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "FORCE_COLOR": ""},  # a progress bar would look at the clock
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"run-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["step"] == two["step"] == 8
    assert torch.equal(one["weights"], two["weights"])
