"""Snapshots of the averaged weights after minutes of training, and the clock that counts them."""

from __future__ import annotations

import time

import pytest
import torch
from rich.console import Console

from stochseg.models import load
from stochseg.training import loop, train

QUIET = Console(quiet=True)


@pytest.fixture
def ticking(monkeypatch):
    """A CPU clock that advances by six seconds whenever it is read."""
    now = iter(range(0, 10**6, 6))
    monkeypatch.setitem(loop.CLOCKS, "cpu", lambda: float(next(now)))


def weights(folder):
    return load(folder).state_dict()


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_snapshots_are_the_averaged_weights_of_their_minute(tiny_run, tmp_path, ticking):
    """Six seconds per step: 0.2 minutes are two steps, and the run of 0.4 minutes has four."""
    config = tiny_run("clock=cpu", "snapshots=[0.2, 0.3]", "minutes=0.4", "steps=100", "decay=constant")
    train(config, tmp_path / "run", device="cpu", console=QUIET)
    train(tiny_run("steps=2", "decay=constant"), tmp_path / "two", device="cpu", console=QUIET)
    at = {name: weights(tmp_path / "run" / name) for name in ("at-0.2m", "at-0.3m", "last")}
    assert same(at["at-0.2m"], weights(tmp_path / "two/last"))
    assert not same(at["at-0.2m"], at["at-0.3m"])
    assert not same(at["at-0.3m"], at["last"])


def test_a_resumed_run_counts_on_and_makes_the_snapshots_that_are_left(tiny_run, tmp_path, ticking):
    out, options = tmp_path / "run", ("clock=cpu", "snapshots=[0.2, 0.5]", "save_every=1")
    train(tiny_run(*options, "steps=3"), out, device="cpu", console=QUIET)
    assert (out / "at-0.2m").is_dir()
    assert not (out / "at-0.5m").exists()
    train(tiny_run(*options, "steps=6"), out, resume=True, device="cpu", console=QUIET)
    assert (out / "at-0.5m").is_dir()


def test_the_clock_of_the_cpu_does_not_count_waiting(tiny_run, tmp_path, monkeypatch):
    step = loop._Run._step

    def slow(self, *rest):
        time.sleep(0.2)
        return step(self, *rest)

    monkeypatch.setattr(loop._Run, "_step", slow)
    train(tiny_run("clock=cpu", "steps=3"), tmp_path / "cpu", device="cpu", console=QUIET)
    train(tiny_run("steps=3"), tmp_path / "wall", device="cpu", console=QUIET)
    seconds = {}
    for name in ("cpu", "wall"):
        text = (tmp_path / name / "log.jsonl").read_text().splitlines()[-1]
        seconds[name] = float(text.partition('"seconds": ')[2].partition(",")[0])
    assert seconds["wall"] > 0.6
    assert seconds["cpu"] < seconds["wall"] - 0.4
