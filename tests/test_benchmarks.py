"""The arithmetic of the table that tells what network evaluations buy (benchmarks/steps.py)."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

RNG = np.random.default_rng(0)


@pytest.fixture
def steps(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("steps")


def test_differences_are_taken_on_the_images_and_seeds_that_both_have(steps):
    """Seed 1 of part 1 is missing in one, seed 0 of part 2 in the other."""
    ours = {key: RNG.random((3, 2)) for key in ((0, 0), (1, 0), (0, 1), (0, 2))}
    most = {key: RNG.random((3, 2)) for key in ((0, 0), (1, 0), (0, 1), (1, 1))}
    row = steps.row_of(ours, most)
    # Means over seeds first, so that an image of two seeds counts as much as one of one.
    mine = [*(ours[0, 0] + ours[1, 0]) / 2, *ours[0, 1], *ours[0, 2]]
    pairs = np.array(
        [
            *zip((ours[0, 0] + ours[1, 0])[:, 0] / 2, (most[0, 0] + most[1, 0])[:, 0] / 2, strict=True),
            *zip(ours[0, 1][:, 0], most[0, 1][:, 0], strict=True),
        ]
    )
    a, b = pairs.T
    assert (row["images"], row["seeds"], row["images_compared"], row["seeds_compared"]) == (9, 1.33, 6, 1.5)
    assert [row["ged_16"], row["hm_iou_16"]] == pytest.approx(np.mean(mine, 0), abs=1e-4)
    assert row["ged_16_over_most"] == pytest.approx(a.mean() / b.mean(), abs=1e-4)
    assert row["standard_error"] == pytest.approx((a - b).std(ddof=1) / 6**0.5 / b.mean(), abs=1e-4)


def test_parts_hold_every_image_once(steps):
    class Numbers:
        info = None

        def __len__(self):
            return 300

        def __getitem__(self, i):
            return i

    parts = steps.parts(Numbers(), 50)
    seen = [part[i] for part in parts for i in range(len(part))]
    assert len(seen) == len(set(seen)) == 50
    assert max(len(part) for part in parts) <= steps.PART
