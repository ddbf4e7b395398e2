"""`stochseg train`: the run it writes, its errors, and resuming."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import yaml

from stochseg.training import loop


def test_a_run_has_its_files(trained):
    for file in ("train.yaml", "log.jsonl", "best/model.safetensors", "last/state/progress.json"):
        assert (trained / file).is_file(), file


def test_an_unknown_recipe_lists_the_known_ones(run):
    code, _, messages = run("train", "phantom-tny")
    assert code == 2
    assert messages.startswith("error: unknown recipe 'phantom-tny'; known: ")
    assert all(name in messages for name in ("phantom-tiny", "lidc-9m", "lidc-41m", "cityscapes-30m"))


def test_a_recipe_without_its_data_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, messages = run("train", "lidc-9m")
    assert code == 2
    assert messages.startswith("error: ")
    assert "data/lidc.h5" in messages
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("steps", "expected key=value"),
        ("stps=3", "unknown key 'stps'; known keys: batch_size, clip"),
        ("validation.evry=3", "unknown key 'validation.evry'; known keys: calibration_images, evaluations, every"),
        ("model.options.bass=8", "model 'ccdm': unknown key 'bass'; known keys: attention, base"),
        ("data.options.variant=ternary", "'variant'"),
        ("data.options.color=red", "'color'; known: count"),
        ("steps=[", "YAML"),
        ("precision=float16", "float16"),
    ],
)
def test_wrong_settings_write_nothing(run, config, tmp_path, override, says):
    code, _, messages = run("train", config, override, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 2
    assert messages.startswith("error: ")
    assert says in messages
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--steps", "10"], "steps=10"),
        (["--steps=10"], "steps=10"),
        (["--batch-size", "8", "lr=1e-3"], "batch_size=8"),
        (["--model.options.base", "32"], "model.options.base=32"),
        (["lr=1e-3", "--ema"], "ema=VALUE"),
    ],
)
def test_a_setting_written_as_an_option_gets_a_hint(run, config, tmp_path, words, hint):
    for arguments in (["train", config, *words], ["train", *words, config]):
        code, _, messages = run(*arguments, "--out", tmp_path / "run")
        assert code == 2
        assert "no such option: --" in messages
        if arguments[1] is config:
            assert f" {hint}." in messages
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_an_unavailable_device_is_named(run, config, tmp_path, device):
    code, _, messages = run("train", config, "--out", tmp_path / "run", "--device", device)
    assert code == 2
    assert f"device '{device}'" in messages


def test_a_file_in_place_of_the_run_folder_is_kept(run, config, tmp_path):
    (tmp_path / "taken").write_text("precious")
    code, _, messages = run("train", config, "--out", tmp_path / "taken", "--device", "cpu")
    assert code == 2
    assert str(tmp_path / "taken") in messages
    assert (tmp_path / "taken").read_text() == "precious"


def test_an_existing_run_is_resumed_only_on_request(run, config, trained):
    code, _, messages = run("train", config, "--out", trained, "--device", "cpu")
    assert code == 2
    assert str(trained) in messages
    assert "--resume" in messages


def test_the_next_command_is_quoted(run, config, tmp_path):
    code, out, _ = run("train", config, "--out", tmp_path / "my run", "--device", "cpu")
    assert code == 0
    assert out.endswith(f"Next: stochseg evaluate '{tmp_path / 'my run'}'\n")


def test_training_resumes_after_ctrl_c(run, config, tmp_path, interruptible):
    out = tmp_path / "my run"
    never = ["steps=1000000", "validation.every=1000000", "save_every=1000000"]
    command = [sys.executable, "-m", "stochseg", "train", str(config), *never, "--out", str(out), "--device", "cpu"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    )
    try:
        deadline = time.monotonic() + 120
        while not (out / "log.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, messages
    assert "Traceback" not in messages
    (advice,) = re.findall(r"resume with: stochseg (.*)", messages)
    assert shlex.split(advice)[-3:] == ["--out", str(out), "--resume"]
    done = json.loads((out / "last/state/progress.json").read_text())["step"]
    assert done >= 1

    values = yaml.safe_load((out / "train.yaml").read_text())
    assert values["steps"] == 1000000
    code, *_ = run(*shlex.split(advice), f"steps={done + 1}", "--device", "cpu")
    assert code == 0
    assert json.loads((out / "last/state/progress.json").read_text())["step"] == done + 1


def test_sigterm_stops_training_like_ctrl_c(run, config, tmp_path, monkeypatch):
    step = loop._Run._step

    def terminated(self, *arguments):
        signal.raise_signal(signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", terminated)
    code, _, messages = run("train", config, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 130
    assert "--resume" in messages
    assert json.loads((tmp_path / "run/last/state/progress.json").read_text())["step"] == 1
