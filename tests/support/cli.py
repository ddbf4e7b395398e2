"""Run the program `stochseg` in the process of a test."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from stochseg import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_raw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Function of the arguments that returns (exit code, output, messages), without colors."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stochseg", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, messages = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in capsys.readouterr())
        return int(exit_.value.code or 0), out, messages

    return call


@pytest.fixture
def run(run_raw: Run) -> Run:
    """The same, for commands that must not crash."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code, out, messages = run_raw(*arguments)
        assert "Traceback" not in messages
        assert code != 70, messages
        return code, out, messages

    return call
