"""The command: exit codes, messages without tracebacks, and the files it writes."""

import csv
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tifffile
import yaml
from PIL import Image

from stochseg import __version__, cli
from stochseg.data import Phantoms
from stochseg.files import write_text
from stochseg.training import loop
from stochseg.training.config import write_config


def commands(app, *path) -> list[tuple[str, ...]]:
    """Every command as what is typed for it, those of sub-commands included."""
    own = [(*path, command.name or command.callback.__name__) for command in app.registered_commands]
    groups = [(*path, group.name) for group in app.registered_groups]
    inner = [found for group in app.registered_groups for found in commands(group.typer_instance, *path, group.name)]
    return own + groups + inner


COMMANDS = commands(cli.app.app)


@pytest.fixture(autouse=True)
def _restore_handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def config(tiny_run, tmp_path_factory):
    """A config file of a second's training."""
    file = tmp_path_factory.mktemp("config") / "tiny.yaml"
    write_config(tiny_run("data.options.size=16", "steps=2"), file)
    return file


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    """A run, made by the command."""
    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stochseg", "train", str(config), "--out", str(out), "--device", "cpu"])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    assert not exit_.value.code
    return out


@pytest.fixture
def slice_png(tmp_path):
    Image.fromarray(Phantoms("test", size=16).raw(0)).save(tmp_path / "slice.png")
    return tmp_path / "slice.png"


# --- without doing anything -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Usage:" in out
    assert (code, out) == run(*command, "-h")[:2]
    inner = [path[-1] for path in COMMANDS if path[:-1] == command]
    assert all(name in out for name in inner)


def test_version(run):
    assert run("--version")[:2] == (0, f"{__version__}\n")


def test_no_arguments_shows_help(run):
    code, out, messages = run()
    assert code == 2
    assert "Usage:" in out + messages


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "no such command 'trian'"),
        (["train"], "missing argument 'recipe'"),
        (["train", "x", "--color"], "no such option"),
        (["predict", "model"], "missing argument 'input"),
        (["evaluate", "x", "--samples", "1"], "--samples"),
        (["predict", "m", "i", "--seed", "-1"], "--seed"),
    ],
)
def test_misuse(run, arguments, says):
    code, _, messages = run(*arguments)
    assert code == 2
    assert says in messages.lower()


def test_help_does_not_wait_for_torch():
    program = "import sys, stochseg.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- mistakes ---------------------------------------------------------------------------------------------


def test_unknown_recipe(run):
    code, _, messages = run("train", "phantom-tny")
    assert code == 2
    assert messages.startswith("error: unknown recipe 'phantom-tny'; known: ")
    assert all(name in messages for name in ("phantom-tiny", "lidc-9m", "lidc-41m", "cityscapes-30m"))


def test_a_recipe_without_its_data(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, messages = run("train", "lidc-9m")
    assert code == 2
    assert re.search(r"error: .*data/lidc.*(expected|make it with)", messages)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("steps", "expected key=value"),
        ("stps=3", "unknown key 'stps'; known keys: batch_size, clip"),
        ("validation.evry=3", "unknown key 'validation.evry'; known keys: calibration_images, evaluations, every"),
        ("model.options.bass=8", "model 'ccdm': unknown key 'bass'; known keys: attention, base"),
        ("data.options.variant=ternary", "'variant'"),
        ("data.options.color=red", "option of data set 'phantom': 'color'; known: count"),
        ("steps=[", "is not a value in YAML"),
        ("precision=float16", "float16 needs a CUDA device"),
    ],
)
def test_bad_overrides(run, config, tmp_path, override, says):
    code, _, messages = run("train", config, override, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 2
    assert messages.startswith("error: ")
    assert says in messages
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there(run, config, tmp_path, device):
    code, _, messages = run("train", config, "--out", tmp_path / "run", "--device", device)
    assert code == 2
    assert f"device '{device}'" in messages


@pytest.mark.parametrize("command", ["evaluate", "bench", "predict"])
def test_a_model_that_is_not_there(run, slice_png, tmp_path, command):
    code, _, messages = run(command, tmp_path / "no" / "run", *([slice_png] if command == "predict" else []))
    assert code == 2
    assert str(tmp_path / "no" / "run") in messages


def test_an_out_that_is_a_file(run, config, tmp_path):
    (tmp_path / "taken").write_text("precious")
    code, _, messages = run("train", config, "--out", tmp_path / "taken", "--device", "cpu")
    assert code == 2
    assert str(tmp_path / "taken") in messages
    assert (tmp_path / "taken").read_text() == "precious"


def test_a_second_run_in_the_same_folder(run, config, trained):
    code, _, messages = run("train", config, "--out", trained, "--device", "cpu")
    assert code == 2
    assert "already contains a run" in messages
    assert "--resume" in messages


@pytest.mark.parametrize("numbers", ["5,x", "0", "5,,6", "-3"])
def test_lists_of_numbers_that_are_none(run, trained, numbers):
    for arguments, option in (
        ((f"{trained}@{numbers}",), "evaluations after @"),
        ((trained, f"--size={numbers}"), "--size"),
    ):
        code, _, messages = run("bench", *arguments)
        assert code == 2
        assert option in messages


# --- the way through --------------------------------------------------------------------------------------


def test_training_writes_a_run(trained):
    for file in ("train.yaml", "log.jsonl", "best/model.safetensors", "last/state/progress.json"):
        assert (trained / file).is_file(), file


def test_evaluate(run, trained, tmp_path):
    code, out, _ = run("evaluate", trained, "-n", 16, "--limit", 2, "--curve", "1,2", "--device", "cpu")
    assert code == 0
    assert "GED, n = 16" in out
    scores = json.loads((trained / "evaluation/metrics.json").read_text())
    assert scores["settings"]["images"] == 2
    for file in ("samples.png", "steps.png"):
        with Image.open(trained / "evaluation" / file) as picture:
            assert picture.width > 300
    code, out, _ = run(
        "evaluate", trained, "-n", 20, "--noise", "latin", "--limit", 2, "--curve", "1,2", "--out", tmp_path
    )
    assert code == 0
    assert "GED, n = 20" in out
    assert "GED, n = 16" not in out
    assert (tmp_path / "steps.png").stat().st_size > 1000
    assert "2 network evaluations per sample" in (tmp_path / "index.html").read_text()
    corrected = ("--sampler", "corrector", "-n", 2, "--limit", 1, "--out", tmp_path / "corrected")
    assert run("evaluate", trained, *corrected)[0] == 0
    assert "3 network evaluations per sample" in (tmp_path / "corrected/index.html").read_text()
    code, _, messages = run("evaluate", "lidc")
    assert code == 2
    assert "lidc is a model without a run, which would know its data; give --data" in messages
    code, _, messages = run("evaluate", trained, "--split", "holdout")
    assert code == 2
    assert "unknown split of phantom 'holdout'; known: test, train, val" in messages


def test_evaluate_learns_before_the_work_that_it_cannot_write(run, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("stochseg.evaluation.evaluate", lambda *_, **__: pytest.fail("the work was begun"))
    (tmp_path / "taken").write_text("precious")
    code, _, messages = run("evaluate", trained, "--out", tmp_path / "taken")
    assert code == 2
    assert "cannot be written" in messages
    assert (tmp_path / "taken").read_text() == "precious"


def test_a_full_disk_is_told(run, trained, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stochseg.evaluation.write_results", full)
    code, _, messages = run("evaluate", trained, "-n", 2, "--limit", 1, "--out", tmp_path / "out")
    assert code == 2
    assert "cannot write: No space left on device" in messages


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_names_that_are_no_text(tmp_path):
    out = tmp_path / os.fsdecode(b"M\xfcller")
    done = subprocess.run(
        [sys.executable, "-m", "stochseg", "data", "example", out, "--count", "2", "--size", "16"],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "\\udcfcller" in done.stdout
    assert write_text(tmp_path / "page.html", str(out)).read_text().endswith("M\\udcfcller")


def test_results_on_a_checkpoint_do_not_go_into_it(run, config, trained, folder_root, tmp_path, monkeypatch):
    """They would keep the next checkpoint from taking its place."""
    monkeypatch.chdir(tmp_path)
    before = sorted(file.name for file in (trained / "last").iterdir())
    arguments = ("--data", folder_root, "-n", 2, "--device", "cpu")
    assert run("evaluate", trained / "last", *arguments)[0] == 0
    assert run("report", trained / "last", *arguments)[0] == 0
    assert sorted(file.name for file in (trained / "last").iterdir()) == before
    assert (tmp_path / "runs/run-last/evaluation/metrics.json").exists()
    assert (tmp_path / "runs/run-last/report.html").exists()


def test_predict(run, trained, slice_png, tmp_path):
    """Everything else about this command is in tests/inference."""
    for seed in (0, 1):
        arguments = ("-n", 3, "--seed", seed, "--overview", "--out", tmp_path / f"out-{seed}")
        code, out, _ = run("predict", trained, slice_png, *arguments)
        assert code == 0
        assert str(tmp_path / f"out-{seed}/slice") in out
    first, second = (tifffile.imread(tmp_path / f"out-{seed}/slice/mean.tif") for seed in (0, 1))
    assert (first != second).any()
    assert (tmp_path / "out-0/slice/overview.png").is_file()


def test_paths_are_printed_as_they_are(run, trained, slice_png, tmp_path):
    """Neither wrapped at the end of a line nor read as markup."""
    name = "[red]" + "long" * 40
    image = slice_png.rename(tmp_path / f"{name}.png")
    code, out, _ = run("predict", trained, image, "-n", 1, "--out", tmp_path / "out")
    assert code == 0
    assert str(image) in out
    code, _, messages = run("predict", trained, tmp_path / f"{name}-absent.png", "--out", tmp_path / "out")
    assert code == 1
    assert f"{name}-absent.png" in messages


def test_bench(run, trained, tmp_path):
    file = tmp_path / "new" / "bench.csv"
    arguments = ("--size", 16, "-n", 2, "--out", file, "--device", "cpu", "--repeats", 1)
    code, out, _ = run("bench", f"{trained}@1,2", "--sampler", "ancestral,sticky", *arguments)
    assert code == 0
    assert "core s" in out
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["sampler"], row["evaluations"]) for row in rows] == [
        (sampler, count) for sampler in ("ancestral", "sticky") for count in "12"
    ]
    assert float(rows[1]["gflop"]) == pytest.approx(2 * float(rows[0]["gflop"]), rel=0.1, abs=0.002)
    for row in rows:
        assert float(row["seconds"]) > 0
        assert float(row["process_megabytes"]) > float(row["peak_megabytes"]) >= 0
        assert 0 < float(row["gemm_share"]) < 1
        assert row["hardware"]
        assert "@1,2" in row["command"]
    assert not file.with_suffix(".png").exists(), "no quality without data"


def test_bench_takes_the_steps_after_the_last_at_sign(run, trained, tmp_path):
    there = shutil.copytree(trained, tmp_path / "ann@corp" / "run")
    code, _, messages = run("bench", f"{there}@1", "--size", 16, "-n", 1, "--device", "cpu", "--repeats", 1)
    assert code == 0
    assert f"{there}, eager: 1 evaluations done" in messages


def test_bench_with_data_shows_quality_against_cost(run, trained, folder_root, tmp_path):
    file = tmp_path / "bench.csv"
    arguments = ("--size", 8, "-n", 2, "--data", folder_root, "--seeds", 2, "--repeats", 1, "--out", file)
    code, *_ = run("bench", f"{trained}@1,2", "--sampler", "sticky,one-step-kernel", *arguments)
    assert code == 0
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4
    for row in rows:
        assert (row["images"], row["seeds"]) == ("1", "2")
        assert 0 <= float(row["hm_iou_2"]) <= 1
        assert float(row["ged_2_deviation"]) >= 0
    assert file.with_suffix(".png").stat().st_size > 1000


def test_bench_refuses_what_a_model_cannot_do_before_it_measures(run, trained, folder_root, tmp_path):
    three = Path(shutil.copytree(folder_root, tmp_path / "three"))
    (tmp_path / "folder.csv").mkdir()
    (three / "dataset.yaml").write_text((three / "dataset.yaml").read_text().replace("classes: 2", "classes: 3"))
    for arguments, message in (
        ((f"{trained}@9",), "between 1 and T=8, got 9"),
        ((trained, "--sampler", "euler"), "unknown sampler 'euler'"),
        ((trained, "--grid", "odd"), "unknown grid 'odd'"),
        ((trained, "--engine", "steam"), "unknown engine 'steam'"),
        ((trained, "--noise", "pink"), "unknown noise 'pink'"),
        ((trained, "--data", three), "has 2 classes and 1 image channel(s), the data have 3 and 1"),
        (("lidc-9m", "--data", folder_root), "expected a trained model to score, got fresh weights alone"),
        ((trained, "--out", tmp_path / "bench.png"), "--out: expected a file that ends in .csv"),
        ((trained, "--out", tmp_path / "folder.csv"), "folder.csv is a folder"),
        ((trained, "--out", three / "dataset.yaml" / "bench.csv"), "bench.csv cannot be written ("),
        ((trained, "--size", "128x"), "--size: expected a whole number of pixels, or height x width"),
        ((trained, "--data", folder_root, "-n", 1), "scores need at least 2 samples an image, got -n 1"),
        (
            ("prob-unet", "--sampler", "sticky"),
            "model 'prob-unet' has no choice of sampler, got 'sticky'",
        ),
    ):
        code, _, messages = run("bench", *arguments)
        assert code == 2
        assert message in messages


def test_bench_scores_trained_weights_alone(run, trained, folder_root, tmp_path, monkeypatch):
    file = tmp_path / "bench.csv"
    arguments = ("--size", 8, "-n", 2, "--data", folder_root, "--repeats", 1, "--out", file)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unet-ce").mkdir()  # such as results
    code, out, _ = run("bench", "unet-ce", f"{trained}@1", *arguments)
    assert code == 0
    assert f"written to {file} and {file.with_suffix('.png')}" in out
    with file.open() as stream:
        fresh, known = csv.DictReader(stream)
    assert (fresh["model"], fresh["ged_2"]) == ("unet-ce", "")
    assert float(known["ged_2"]) >= 0


# --- stopped by the user ----------------------------------------------------------------------------------


def test_training_resumes_after_ctrl_c(run, config, tmp_path, interruptible):
    out = tmp_path / "run"
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
    (advice,) = re.findall(r"go on with: stochseg (.*)", messages)
    assert advice.endswith(f"--out {out} --resume")
    done = json.loads((out / "last/state/progress.json").read_text())["step"]
    assert done >= 1

    values = yaml.safe_load((out / "train.yaml").read_text())
    assert values["steps"] == 1000000
    code, *_ = run(*shlex.split(advice), f"steps={done + 1}", "--device", "cpu")
    assert code == 0
    assert json.loads((out / "last/state/progress.json").read_text())["step"] == done + 1


def test_a_job_manager_stops_training_like_ctrl_c(run, config, tmp_path, monkeypatch):
    step = loop._Run._step

    def terminated(self, *arguments):
        signal.raise_signal(signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", terminated)
    code, _, messages = run("train", config, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 130
    assert "--resume" in messages
    assert json.loads((tmp_path / "run/last/state/progress.json").read_text())["step"] == 1
