"""The Dockerfile fits the repository and the command; no daemon is needed to see that."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.main import get_command

from stochseg.cli.app import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """Instructions and their arguments."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = [re.match(r"([A-Z]+)\s+(.*)", line) for line in text.splitlines()]
    return [(step[1], step[2]) for step in found if step]


def test_copied_files_are_in_the_build_context(steps):
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [name for step, rest in steps if step == "COPY" and "--from" not in rest for name in rest.split()[:-1]]
    assert "src" in copied
    for name in copied:
        assert (ROOT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in ignored), name


def test_it_runs_without_privileges_from_the_last_stage(steps):
    last = max(i for i, (step, _) in enumerate(steps) if step == "FROM")
    names = [step for step, _ in steps[last:]]
    users = [rest for step, rest in steps[last:] if step == "USER"]
    assert users == ["studio"]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_its_command_has_only_known_options(steps):
    program, command, *words = json.loads(next(rest for step, rest in steps if step == "ENTRYPOINT"))
    known = {name for each in get_command(app).commands[command].params for name in (*each.opts, *each.secondary_opts)}
    assert program == "stochseg"
    assert {word for word in words if word.startswith("--")} <= known
    assert words[words.index("--host") + 1] == "0.0.0.0"
    assert "--token-file" in words  # any address but loopback needs one
