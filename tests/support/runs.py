"""Training runs: their records, their equality, and how to interrupt them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from stochseg.training import loop

CHECKPOINT_FILES = ("model.safetensors", "state/model.safetensors", "state/optimizer.safetensors")


def records(out: Path) -> list[dict]:
    """The log of a run, without the time."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in lines]


def values(out: Path, key: str) -> dict[int, float]:
    """Logged values by step."""
    return {record["step"]: record[key] for record in records(out) if key in record}


def saved_progress(out: Path) -> dict:
    """Progress of a run at its last checkpoint."""
    return json.loads((out / "last/state/progress.json").read_text())


def evaluations(results: Path) -> list[Path]:
    """Folders of the evaluations of a run, the oldest first."""
    return sorted(results.glob("evaluations/*"))


def assert_same_run(a: Path, b: Path) -> None:
    """Compare averaged weights, trained weights, optimizer and log bit by bit."""
    for file in CHECKPOINT_FILES:
        one, two = load_file(a / "last" / file), load_file(b / "last" / file)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[k], two[k]) for k in one), file
    assert records(a) == records(b)


def stop_at(monkeypatch, call: int, error: BaseException) -> None:
    """Raise instead of the given optimizer step, counted from 1."""
    step, calls = loop._Run._step, []

    def counted(self, *arguments):
        calls.append(1)
        if len(calls) == call:
            raise error
        return step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", counted)
