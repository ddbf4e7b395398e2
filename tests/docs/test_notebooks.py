"""The notebooks run, and are committed with their outputs, small."""

from __future__ import annotations

import importlib.util

import nbformat
import pytest

from tests.docs.blocks import ROOT

SPEC = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
run_notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_notebooks)


@pytest.mark.parametrize("path", run_notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_has_the_outputs_of_a_run(path):
    stored, fresh = nbformat.read(path, as_version=4), run_notebooks.run(path)
    assert path.stat().st_size < 300_000
    for old, new in zip(stored.cells, fresh.cells, strict=True):
        if old.cell_type == "code":
            assert kinds(old) == kinds(new), f"run python docs/run_notebooks.py: the outputs of {old.id} are old"


def kinds(cell: nbformat.NotebookNode) -> set[str]:
    """Forms of the outputs of a cell, such as image/png; their values depend on the machine."""
    return {kind for output in cell.outputs for kind in output.get("data", {output.get("name", ""): ""})}
