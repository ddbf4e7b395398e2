"""Prediction on several processes: the same files as in one, whatever happens to a worker."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import Lesion, PredictOptions, predict, predict_lesions
from stochseg.models import load, save
from tests.support.predictions import RNG, gray, small_model
from tests.support.scans import ct, random_model, write_nifti
from tests.support.workers import DeadlyPool, worker_pids

pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("dask")
OPTIONS = PredictOptions(n=2)
PICTURES = 40


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(small_model(), tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """More pictures than chunks, a volume, and a broken file."""
    folder = tmp_path_factory.mktemp("inputs")
    for i in range(PICTURES):
        Image.fromarray(gray(9 + i % 2, 12)).save(folder / f"{i:02}.png")
    volume = RNG.integers(0, 256, (10, 8, 3), dtype=np.uint8)
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(folder / "volume.nii")
    (folder / "broken.png").write_bytes(b"broken")
    return folder


@pytest.fixture(scope="module")
def alone(saved, inputs, tmp_path_factory):
    """Results of one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    outcomes = predict(load(saved), inputs, out, OPTIONS, origin=str(saved))
    assert [outcome.status for outcome in outcomes].count("done") == PICTURES + 1
    return out


def contents(out: Path) -> dict[str, object]:
    """All files of the results by name, records without the time."""
    found = {}
    for file in sorted(out.rglob("*")):
        if file.is_file():
            name = file.relative_to(out).as_posix()
            found[name] = file.read_bytes()
            if file.name == "result.json":
                found[name] = {k: v for k, v in json.loads(file.read_text()).items() if k != "seconds"}
    return found


def on_workers(pool, saved, inputs, out, **arguments):
    return predict(load(saved), inputs, out, OPTIONS, origin=str(saved), pool=pool, **arguments)


def test_the_same_files_as_in_one_process(pool, saved, inputs, alone, tmp_path):
    seen = []
    outcomes = on_workers(pool, saved, inputs, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert contents(tmp_path) == contents(alone)
    (failed,) = (outcome for outcome in outcomes if outcome.status == "failed")
    assert Path(failed.source).name == "broken.png"
    assert seen[-1] == (PICTURES + 2, PICTURES + 2)


def test_lesions_of_several_scans(pool, tmp_path):
    model = save(random_model(2), tmp_path / "model")
    scans = [write_nifti(tmp_path / f"{name}.nii", ct(seed=i)) for i, name in enumerate("abc")]
    lesions = [Lesion(str(x), ((x, 14, 5),), input=name) for x in (10, 12) for name in "abc"]
    lesions += [Lesion("outside", ((99, 14, 5),), input="b")]
    for out, workers in (("alone", None), ("shared", pool)):
        outcomes = predict_lesions(
            load(model), scans, lesions, tmp_path / out, OPTIONS, origin=str(model), pool=workers
        )
        assert sorted(outcome.status for outcome in outcomes) == ["done", "done", "failed"]
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
    assert {path.name for path in (tmp_path / "shared").iterdir()} == {"a", "c"}


def test_a_killed_worker_is_replaced(pool, saved, inputs, alone, tmp_path):
    before, count = worker_pids(pool), []

    def kill(outcome):
        count.append(outcome)
        if len(count) == 5:
            os.kill(before[0], signal.SIGKILL)

    outcomes = on_workers(pool, saved, inputs, tmp_path, report=kill)
    assert contents(tmp_path) == contents(alone)
    assert [outcome.status for outcome in outcomes].count("failed") == 1
    assert not Path(f"/proc/{before[0]}").exists()


def test_an_input_that_kills_its_workers_is_skipped(pool, saved, inputs, alone, tmp_path):
    outcomes = on_workers(DeadlyPool(pool, "17.png"), saved, inputs, tmp_path)
    problems = {Path(outcome.source).name: outcome.problem for outcome in outcomes if outcome.status == "failed"}
    assert problems.keys() == {"17.png", "broken.png"}
    assert "its worker died 2 times" in problems["17.png"]
    assert contents(tmp_path) == {name: file for name, file in contents(alone).items() if not name.startswith("17/")}
    outcomes = on_workers(pool, saved, inputs, tmp_path)
    assert [outcome.status for outcome in outcomes].count("kept") == PICTURES
    assert contents(tmp_path) == contents(alone)


def test_a_model_that_is_trained_at_the_same_time_is_refused(pool, saved, inputs, tmp_path):
    network = small_model()
    with torch.no_grad():
        next(network.parameters()).add_(0.1)
    other = save(network, tmp_path / "model")
    with pytest.raises(UserError, match="differs from the model"):
        predict(load(saved), inputs, tmp_path / "out", OPTIONS, origin=str(other), pool=pool)
    assert not (tmp_path / "out").exists()


def test_workers_do_not_write_without_the_lock(pool, saved, inputs, tmp_path):
    """The command has ended, and another one may be writing."""
    with pytest.raises(UserError, match="does not belong to this process"):
        on_workers(pool, saved, inputs, tmp_path, report=lambda outcome: (tmp_path / ".lock").unlink(missing_ok=True))


def test_ctrl_c_leaves_complete_results_and_no_process(saved, inputs, alone, tmp_path, interruptible):
    words = ["predict", saved, inputs, "--out", tmp_path / "out", "-n", 2, "--workers", 2, "--device", "cpu"]
    command = subprocess.Popen(
        [sys.executable, "-m", "stochseg", *map(str, words)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    children = [int(pid) for pid in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()]
    os.killpg(command.pid, signal.SIGINT)
    command.stdout.read()
    assert command.wait(60) == 130
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    found, expected = contents(tmp_path / "out"), contents(alone)
    assert len({name.partition("/")[0] for name in found}) < PICTURES
    assert found == {name: expected[name] for name in found}
