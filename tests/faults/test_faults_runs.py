"""Damaged, lost and foreign parts of a run; full disks; a log with odd lines."""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import load_file, save_file

from stochseg.errors import UserError
from stochseg.files import MANIFEST, write_manifest
from stochseg.models import load
from stochseg.training import loop, train
from stochseg.training.log import read_log
from tests.support.processes import dead_owner
from tests.support.runs import assert_same_run, records, saved_progress, stop_at, values

CHANGES = ("validation.every=2", "save_every=1", "steps=3")


@pytest.fixture(autouse=True)
def _plain_pictures(monkeypatch):
    monkeypatch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))


@pytest.fixture(scope="module")
def trained(tiny_run, tmp_path_factory) -> Path:
    """A run of three steps with a checkpoint of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))
        return train(tiny_run(*CHANGES), tmp_path_factory.mktemp("runs") / "run", device="cpu")


@pytest.fixture
def out(trained, tmp_path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def resume(tiny_run, out):
    """Resume the run, with changes of its config; returns the messages."""

    def call(*changes: str) -> str:
        text = io.StringIO()
        config = tiny_run(*CHANGES, *changes)
        train(config, out, resume=True, device="cpu", console=Console(file=text, width=1000))
        return text.getvalue()

    return call


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 64
    file.write_bytes(content)


def unprotect(folder: Path) -> None:
    """Remove the checksums, as in a checkpoint of an older version."""
    (folder / MANIFEST).unlink()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------- checkpoints that are damaged or lost


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "state/optimizer.safetensors", MANIFEST])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(out, resume, trained, name):
    damage(out / "last" / name)
    text = resume()
    assert "warning" in text
    assert all(str(out / part) in text for part in (f"last/{name}", "last-1", "last.damaged-1"))
    assert "at step 2" in text
    assert_same_run(out, trained)
    assert saved_progress(out)["step"] == 3
    assert (out / "last.damaged-1").is_dir()
    assert "warning" not in resume("steps=4")
    assert json.loads((out / "last-1/state/progress.json").read_text())["step"] == 3, "never the damaged one"


def test_half_a_checkpoint_falls_back_to_the_one_before(out, resume, trained):
    (out / "last/state/model.safetensors").unlink()
    unprotect(out / "last")
    assert "model.safetensors is missing" in resume()
    assert_same_run(out, trained)


def test_any_checkpoint_that_is_left_is_resumed(tiny_run, tmp_path):
    out, changes = tmp_path / "run", ("save_every=1", "keep_checkpoints=3")
    train(tiny_run("steps=4", *changes), out, device="cpu")
    for name in ("last", "last-1"):
        shutil.rmtree(out / name)
    train(tiny_run("steps=4", *changes), out, resume=True, device="cpu", console=Console(file=(text := io.StringIO())))
    assert "step 2" in text.getvalue()
    assert "log reaches step 4" in " ".join(text.getvalue().split())
    assert saved_progress(out)["step"] == 4


def test_no_sound_checkpoint_is_an_error_that_changes_nothing(out, resume):
    for folder in ("last", "last-1"):
        damage(out / folder / "model.safetensors")
    before = everything(out)
    with pytest.raises(UserError, match=r"last/model\.safetensors is damaged.*No other checkpoint.*--out"):
        resume()
    assert everything(out) == before


@pytest.mark.parametrize("lost", [("last", "last-1"), ("last", "last-1", "best"), ("last", "last-1", "log.jsonl")])
def test_a_run_without_checkpoints_is_not_started_over(out, resume, lost):
    for name in lost:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    before = everything(out)
    with pytest.raises(UserError, match=r"no checkpoint to resume from.*Restore .*last.*--out"):
        resume()
    assert everything(out) == before


def test_a_run_killed_between_two_moves_resumes_without_a_warning(out, resume, trained):
    shutil.rmtree(out / "last-1")
    (out / "last").rename(out / "last-1")
    shutil.copytree(out / "last-1", out / f".last.{dead_owner().tag}-0000.part")
    load(out)
    assert "warning" not in resume()
    assert_same_run(out, trained)
    assert not list(out.glob(".*"))


def test_the_number_of_kept_checkpoints(out, resume):
    resume("steps=6", "keep_checkpoints=3")
    steps = {path.name: json.loads((path / "state/progress.json").read_text())["step"] for path in out.glob("last*")}
    assert steps == {"last": 6, "last-1": 5, "last-2": 4}


def test_a_run_that_was_not_trained_is_no_model(tiny_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "remove_traces", lambda out: None)  # as if the process was killed
        stop_at(patch, 1, RuntimeError("killed"))
        with pytest.raises(RuntimeError, match="killed"):
            train(tiny_run(), tmp_path / "run", device="cpu")
    for path in (tmp_path / "run", tmp_path / "run/last"):
        with pytest.raises(UserError, match=r"not been trained yet.*--resume"):
            load(path)


# ---------------------------------------------------------------------- the best model


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_half_a_best_model_is_never_the_last_one(out, resume, lost):
    (out / "best" / lost).unlink()
    with pytest.raises(UserError, match=rf"best: {lost} missing.*last checkpoint.*{out / 'last'}"):
        load(out)
    text = resume("steps=4")
    assert "warning" in text
    assert str(out / "best.damaged-1") in text
    assert saved_progress(out)["best_step"] == 4
    load(out)


def test_a_damaged_best_model_is_an_error(out):
    damage(out / "best/model.safetensors")
    with pytest.raises(UserError, match=rf"best/model\.safetensors is damaged.*{out / 'last'}"):
        load(out)
    load(out / "last")


def test_a_finished_run_writes_a_lost_best_model_again(out, resume):
    shutil.rmtree(out / "best")
    logged = records(out)
    assert "best is missing" in resume()
    load(out / "best")
    assert records(out) == logged
    assert "warning" not in resume()


# ---------------------------------------------------------------------- refusals before the training


@pytest.mark.parametrize("stray", ["best/notes.txt", "last/notes.txt", "last-1/notes/"])
def test_foreign_files_are_refused_before_the_training(out, resume, monkeypatch, stray):
    (out / stray).mkdir() if stray.endswith("/") else (out / stray).touch()
    stop_at(monkeypatch, 1, RuntimeError("trained"))
    with pytest.raises(UserError, match=rf"{Path(stray).parts[0]} contains notes.*; move it"):
        resume("steps=9")


def test_a_folder_with_a_run_is_refused_before_the_data_are_opened(out, tiny_run):
    with pytest.raises(UserError, match="already contains a run"):
        train(tiny_run("data.options.size=-1", "data.augment=auto"), out, device="cpu")


def test_a_new_run_refuses_folders_that_it_would_have_to_replace(tiny_run, tmp_path, monkeypatch):
    (tmp_path / "best").mkdir()
    (tmp_path / "best/cat.png").touch()
    stop_at(monkeypatch, 1, RuntimeError("trained"))
    with pytest.raises(UserError, match="best exists and is not a checkpoint"):
        train(tiny_run(), tmp_path, device="cpu")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["best", "cat.png"]


@pytest.mark.parametrize("lost", [("train.yaml",), ("train.yaml", "last", "last-1", "log.jsonl")])
def test_a_new_run_does_not_replace_what_is_left_of_another(out, tiny_run, lost):
    for name in lost:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    with pytest.raises(UserError, match="already contains a run"):
        train(tiny_run(*CHANGES), out, device="cpu")


def rewrite(file: Path, change) -> None:
    """Change the tensors of a file in a checkpoint whose checksums are right."""
    save_file(change(load_file(file)), file)
    folder = next(path for path in file.parents if path.name.startswith("last"))
    write_manifest(folder)


def cut(tensors):
    name = next(key for key in tensors if key.endswith("/exp_avg") and tensors[key].ndim > 1)
    return {**tensors, name: tensors[name][:1].clone()}


def with_nan(tensors):
    name = next(iter(tensors))
    return {**tensors, name: torch.full_like(tensors[name], torch.nan)}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("state/optimizer.safetensors", lambda tensors: {}, r"expected \d+ tensors, got 0"),
        ("state/optimizer.safetensors", lambda tensors: dict([*tensors.items()][1:]), r"expected \d+ tensors, got \d+"),
        ("state/optimizer.safetensors", lambda t: {f"x{k}": v for k, v in t.items()}, "unknown parameter 'x"),
        ("state/optimizer.safetensors", cut, r"has shape .*expected"),
        ("model.safetensors", with_nan, "not finite"),
        ("state/model.safetensors", with_nan, "not finite"),
    ],
)
def test_states_that_do_not_fit(out, resume, name, change, message):
    shutil.rmtree(out / "last-1")
    rewrite(out / "last" / name, change)
    with pytest.raises(UserError, match=message):
        resume()


def test_an_empty_optimizer_state_of_an_older_version(out, resume):
    shutil.rmtree(out / "last-1")
    file = out / "last/state/progress.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "moments"}))
    unprotect(out / "last")
    resume()
    save_file({}, out / "last/state/optimizer.safetensors")
    unprotect(out / "last") if (out / "last" / MANIFEST).exists() else None
    with pytest.raises(UserError, match="expected some tensors, got 0"):
        resume()


@pytest.mark.parametrize(("key", "value"), [("step", "three"), ("best", []), ("extra", 1), ("seconds", None)])
def test_progress_that_is_not_ours(out, resume, key, value):
    shutil.rmtree(out / "last-1")
    file = out / "last/state/progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    write_manifest(out / "last")
    with pytest.raises(UserError, match=rf"progress\.json: .*{key}"):
        resume()


# ---------------------------------------------------------------------- the log


def test_odd_lines_of_the_log_neither_stop_nor_cut_a_resumed_run(out, resume):
    lines = (out / "log.jsonl").read_text().splitlines()
    odd = ["not JSON", "[1]", '{"note": 1}', '{"step": "x"}', '{"step": Infinity}', "\x00\x00", ""]
    (out / "log.jsonl").write_text("\n".join([lines[0], *odd, *lines[1:], '{"step": 3, "tr']))
    resume("steps=4")
    kept = (out / "log.jsonl").read_text().splitlines()
    assert [line for line in kept if line in odd] == odd
    assert not any("tr" in line and not line.endswith("}") for line in kept)
    logged = read_log(out / "log.jsonl")
    assert [record["step"] for record in logged if "train/loss" in record] == [1, 2, 3, 4]


# ---------------------------------------------------------------------- full disks, killed launchers


def test_a_full_disk_is_named_and_nothing_is_lost(out, resume, tiny_run):
    """The limit of a file's size takes the part of a full disk; both fail in the middle of a write."""
    before = everything(out / "last")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((out / "last/model.safetensors").stat().st_size - 1, limits[1]))
    try:
        with pytest.raises(UserError, match=rf"cannot write to {out}: .*disk /.*MB free.*last is complete, at step 3"):
            resume("steps=5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert everything(out / "last") == before
    assert not list(out.glob(".*"))
    resume("steps=5")
    assert sorted(values(out, "train/loss")) == [1, 2, 3, 4, 5]


WORKER = """
import os, sys, time
os.environ["TORCHELASTIC_RUN_ID"] = "test"
from stochseg.training.distributed import join
join("cpu")
print(os.getpid(), flush=True)
time.sleep(600)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_rank_ends_with_its_launcher():
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, WORKER], stdout=subprocess.PIPE, text=True)
    rank = int(launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    deadline = time.monotonic() + 20
    while _is_running(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not _is_running(rank)
    if not ended:
        os.kill(rank, signal.SIGKILL)
    assert ended


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
