"""The program: help, exit codes, errors without tracebacks."""

import errno
import os
import subprocess
import sys

import pytest
import typer

from stochseg import __version__, cli
from stochseg.cli.options import SAMPLING
from stochseg.files import write_text


def commands(app, *path) -> list[tuple[str, ...]]:
    """Words of every command, groups and the commands inside them included."""
    own = [(*path, command.name or command.callback.__name__) for command in app.registered_commands]
    groups = [(*path, group.name) for group in app.registered_groups]
    inner = [found for group in app.registered_groups for found in commands(group.typer_instance, *path, group.name)]
    return own + groups + inner


COMMANDS = commands(cli.app.app)


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_lists_the_commands_inside(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Usage:" in out
    assert (code, out) == run(*command, "-h")[:2]
    inner = [path[-1] for path in COMMANDS if path[:-1] == command]
    assert all(name in out for name in inner)


def test_help_starts_without_torch():
    program = "import sys, stochseg.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_sampling_options_are_the_same_in_every_command():
    declared: dict[str, set[str]] = {}
    users: dict[str, set[str]] = {}
    for name, command in typer.main.get_command(cli.app.app).commands.items():
        for option in command.params:
            if getattr(option, "rich_help_panel", None) == SAMPLING:
                declared.setdefault(option.name, set()).add(f"{option.opts} {option.help}")
                users.setdefault(name, set()).add(option.name)
    assert all(len(texts) == 1 for texts in declared.values()), declared
    everything = {"n", "evaluations", "sampler", "grid", "noise", "seed"}
    assert users["predict"] == users["evaluate"] == everything | {"rater", "guidance"}
    assert users["report"] == users["calibrate"] == everything
    assert users["bench"] == everything - {"evaluations", "seed"}, "numbers after @, and --seeds"
    assert users["compare"] == everything - {"sampler", "grid"}, "settings of a method"


def test_version(run):
    assert run("--version")[:2] == (0, f"{__version__}\n")


def test_no_arguments_print_the_help(run):
    code, out, messages = run()
    assert code == 2
    assert "Usage:" in out + messages


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "no such command 'trian'"),
        (["train"], "missing argument 'recipe'"),
        (["train", "x", "--color"], "no such option: --color"),
        (["evaluate", "x", "--color"], "no such option"),
        (["predict", "model"], "missing argument 'input"),
        (["evaluate", "x", "--samples", "0"], "--samples"),
        (["predict", "m", "i", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_exits_with_2(run, arguments, says):
    code, _, messages = run(*arguments)
    assert code == 2
    assert says in messages.lower()


@pytest.mark.parametrize("command", ["evaluate", "bench", "predict"])
def test_a_missing_model_is_named(run, slice_png, tmp_path, command):
    code, _, messages = run(command, tmp_path / "no" / "run", *([slice_png] if command == "predict" else []))
    assert code == 2
    assert str(tmp_path / "no" / "run") in messages


def test_a_full_disk_is_an_error_without_traceback(run, trained, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stochseg.experiments.runs.write_results", full)
    code, _, messages = run("evaluate", trained, "-n", 2, "--limit", 1, "--out", tmp_path / "out")
    assert code == 2
    assert "cannot write: No space left on device" in messages


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_file_names_that_are_not_utf8_are_printed(tmp_path):
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


@pytest.mark.parametrize(("command", "is_refused"), [("predict", True), ("evaluate", True), ("train", False)])
def test_only_training_runs_under_torchrun(run, monkeypatch, command, is_refused):
    """Every copy would do everything."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, messages = run(command, "nowhere", "nothing")
    assert (code, "--workers" in messages) == (2, is_refused)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "--workers" not in run(command, "nowhere", "nothing")[2]
