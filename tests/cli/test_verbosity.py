"""--quiet, --verbose, crashes, and completion for shells."""

import logging
import os
import subprocess
import sys

import pytest

import stochseg
from stochseg.cli import app as program

PROGRAM = "import sys; sys.argv[0] = 'stochseg'; from stochseg.cli import main; main()"
"""The script that an install puts on the path."""


@pytest.fixture(autouse=True)
def _terminal_restored():
    yield
    program.show_messages()


def predict(run, slice_png, trained, tmp_path, *options):
    return run(*options, "predict", trained, slice_png, tmp_path / "missing.png", "--out", tmp_path / "out", "-n", 2)


def test_quiet_leaves_results_and_errors(run, trained, slice_png, tmp_path):
    code, out, messages = predict(run, slice_png, trained, tmp_path, "--quiet")
    assert code == 1
    assert "slice.png ->" in out
    assert "skipped:" in messages
    assert "note:" not in messages
    code, _, messages = run("--quiet", "predict", tmp_path / "no-model", slice_png)
    assert code == 2
    assert messages.startswith("error: no model")


def test_quiet_hides_notes_and_progress(run, trained, tmp_path):
    arguments = ("evaluate", trained, "-n", 1, "--limit", 1, "--device", "cpu")
    assert "one sample per image" in run(*arguments, "--out", tmp_path / "a")[2]
    code, out, messages = run("-q", *arguments, "--out", tmp_path / "b")
    assert (code, messages) == (0, "")
    assert "written to" in out


def test_verbose_shows_what_is_done_and_where_an_error_was_raised(run_raw, trained, slice_png, tmp_path):
    code, _, messages = run_raw("--verbose", "predict", trained, slice_png, "--out", tmp_path / "out", "-n", 2)
    assert code == 0
    assert "stochseg.models.io: loaded ccdm" in messages
    code, _, messages = run_raw("-v", "predict", tmp_path / "no-model", slice_png)
    assert code == 2
    assert "Traceback" in messages
    assert "in find_model" in messages
    assert "error: no model" in messages


def test_both_are_refused(run):
    code, _, messages = run("-q", "-v", "data", "check", "x")
    assert code == 2
    assert "expected at most one" in messages


def test_crashes_are_short_and_keep_their_traceback(run_raw, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise TypeError("a mistake of ours")

    monkeypatch.setattr("stochseg.evaluation.data_report.report_data", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, messages = run_raw("data", "check", tmp_path)
    assert code == 70
    assert messages.strip().startswith("crash: TypeError: a mistake of ours")
    (file,) = tmp_path.glob("stochseg-*.txt")
    assert file.name in messages
    text = file.read_text()
    assert text.startswith("stochseg data check")
    assert "in broken" in text
    assert "in broken" in run_raw("--verbose", "data", "check", tmp_path)[2]


def test_the_library_configures_no_logging():
    code = """if True:
        import logging, stochseg
        stochseg.load("lidc")
        print(logging.getLogger("stochseg").handlers, logging.root.handlers)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"
    assert done.stderr == ""


def test_programs_can_listen(caplog):
    with caplog.at_level(logging.DEBUG, logger="stochseg"):
        stochseg.load("lidc")
    assert any(record.name == "stochseg.models.io" for record in caplog.records)


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bash_completions/stochseg.sh"), ("zsh", ".zfunc/_stochseg")])
def test_completion_can_be_installed(tmp_path, shell, file):
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-c", PROGRAM, "--install-completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / file).is_file()


def test_completion_offers_commands():
    words = {"COMP_WORDS": "stochseg pre", "COMP_CWORD": "1", "_STOCHSEG_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **words}, capture_output=True, text=True)
    assert done.stdout.split() == ["predict"], done.stderr
