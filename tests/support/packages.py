"""A package that looks installed: a module and its `.dist-info` in a folder on `sys.path`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """Write the module `name` with its entry points, {group: {entry: object of the module}}, until the test ends."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in entry_points.items()
        for line in [f"[{group}]", *(f"{entry} = {name}:{value}" for entry, value in entries.items())]
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, name, sys)  # so that the module is forgotten when the test ends
    del sys.modules[name]
