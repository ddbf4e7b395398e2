"""Run the notebooks and store their outputs in them: `python docs/run_notebooks.py [NOTEBOOK...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def run(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder and return it with its outputs, without dates and versions."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
        client.execute(cwd=folder)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or NOTEBOOKS):
        nbformat.write(run(path), path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
