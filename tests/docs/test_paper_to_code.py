"""The map from the paper to the code must point at things that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "paper_to_code.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]


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


def test_the_table_was_found():
    assert len(ROWS) > 15
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_code_and_test_exist(row):
    _, code, test = row
    for name in re.findall(r"`([^`]+)`", code):
        assert callable(resolve(name))
    for target in re.findall(r"`([^`]+)`", test):
        file, _, function = target.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in names if function else any(name.startswith("test_") for name in names)
