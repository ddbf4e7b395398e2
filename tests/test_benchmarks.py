"""Benchmarks: every script has a help, and the arithmetic of benchmarks/evaluations.py is correct."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(file for file in BENCHMARKS.glob("*.py") if file.stem != "harness")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def evaluations():
    return importlib.import_module("evaluations")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_has_a_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(script), run_name="__main__")
    assert exit_.value.code == 0
    title = ast.get_docstring(ast.parse(script.read_text())).split()[:4]
    assert " ".join(title) in " ".join(capsys.readouterr().out.split())


def test_differences_are_taken_on_common_images_and_seeds(evaluations):
    """Seed 1 of part 1 is missing in one, seed 0 of part 2 in the other."""
    ours = {key: RNG.random((3, 2)) for key in ((0, 0), (1, 0), (0, 1), (0, 2))}
    reference = {key: RNG.random((3, 2)) for key in ((0, 0), (1, 0), (0, 1), (1, 1))}
    row = evaluations.row_of(ours, reference)
    # Seeds are averaged first, so that an image with two seeds counts as much as one with one.
    mine = [*(ours[0, 0] + ours[1, 0]) / 2, *ours[0, 1], *ours[0, 2]]
    pairs = np.array(
        [
            *zip((ours[0, 0] + ours[1, 0])[:, 0] / 2, (reference[0, 0] + reference[1, 0])[:, 0] / 2, strict=True),
            *zip(ours[0, 1][:, 0], reference[0, 1][:, 0], strict=True),
        ]
    )
    a, b = pairs.T
    assert (row["images"], row["seeds"], row["images_compared"], row["seeds_compared"]) == (9, 1.33, 6, 1.5)
    assert [row["ged_16"], row["hm_iou_16"]] == pytest.approx(np.mean(mine, 0), abs=1e-4)
    assert row["ged_16_over_reference"] == pytest.approx(a.mean() / b.mean(), abs=1e-4)
    assert row["standard_error"] == pytest.approx((a - b).std(ddof=1) / 6**0.5 / b.mean(), abs=1e-4)


def test_every_image_is_in_one_part(evaluations):
    class Numbers:
        info = None

        def __len__(self):
            return 300

        def __getitem__(self, i):
            return i

    parts = evaluations.parts(Numbers(), 50)
    seen = [part[i] for part in parts for i in range(len(part))]
    assert len(seen) == len(set(seen)) == 50
    assert max(len(part) for part in parts) <= evaluations.PART
