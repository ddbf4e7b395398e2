"""The table in docs/paper_to_code.md: code and tests exist, and equations are named where they are computed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "paper_to_code.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]
EQUATIONS = [(name, code) for paper, code, _ in ROWS for name in re.findall(r"Eq\. ([\w-]+)", paper)]
rows = pytest.mark.parametrize(("paper", "code", "test"), ROWS, ids=[row[0][:40] for row in ROWS])


def resolve(name: str) -> object:
    """The object behind a dotted name: the longest part that is a module, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


def test_the_table_is_found():
    assert len(ROWS) > 15
    assert {"q_xt_given_x0", "q_params", "p_params", "kl_div", "ged"} <= {name for name, _ in EQUATIONS}


@rows
def test_the_code_exists(paper, code, test):
    assert all(callable(resolve(name)) for name in re.findall(r"`([^`]+)`", code))


@rows
def test_the_test_exists(paper, code, test):
    for target in re.findall(r"`([^`]+)`", test):
        file, _, function = target.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in names if function else any(name.startswith("test_") for name in names)


@pytest.mark.parametrize(("equation", "code"), EQUATIONS)
def test_the_docstring_names_the_equation(equation, code):
    assert f"Eq. {equation}" in (inspect.getdoc(resolve(code.strip("`"))) or "")
