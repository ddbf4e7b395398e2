"""The real LIDC slices, if they are on this machine: counts, rater statistics, and reference values of metrics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import stochseg
from stochseg.data import plan_import
from stochseg.metrics import ged, hm_iou

ZIP = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "lidc-slices-trainval.zip"
pytestmark = pytest.mark.skipif(not ZIP.exists(), reason="the LIDC slices are not on this machine")


@pytest.fixture(scope="module")
def plan():
    return plan_import("lidc-slices", ZIP)


@pytest.fixture(scope="module")
def val_labels(plan) -> torch.Tensor:
    """All label maps of the val patients, "i k h w"."""
    return torch.from_numpy(np.stack([item.read().raters for item in plan.items if item.split == "val"])).long()


def test_counts_by_split(plan):
    slices = Counter(item.split for item in plan.items)
    patients = {split: len({item.group for item in plan.items if item.split == split}) for split in slices}
    assert slices == {"train": 10_168, "val": 2_590}
    assert patients == {"train": 559, "val": 152}


def test_rater_statistics(val_labels):
    """The number of raters who drew anything is distributed as in the whole data set."""
    drawn = (val_labels.flatten(2) > 0).any(2).sum(1)
    frequencies = torch.bincount(drawn, minlength=5) / len(drawn)
    known = torch.tensor([0.004, 0.315, 0.194, 0.182, 0.305])
    assert (frequencies - known).abs().max() < 0.02


@pytest.mark.parametrize(
    ("reading", "expected"), [("nothing", (0.854, 0.380)), ("majority", (0.260, 0.677))], ids=["nothing", "majority"]
)
def test_reference_values_of_metrics(val_labels, reading, expected):
    """GED_16 and HM-IoU_16 of one repeated map over all val slices are within 0.02 of the published values."""
    if reading == "nothing":
        guess = torch.zeros_like(val_labels[:, :1])
    else:
        guess = (val_labels.float().mean(1, keepdim=True) > 0.5).long()
    guess = guess.expand(-1, 16, -1, -1)
    scores = []
    for part in torch.arange(len(val_labels)).split(64):
        scores.append((ged(guess[part], val_labels[part], 2), hm_iou(guess[part], val_labels[part], 2)))
    got = [float(torch.cat(column).mean()) for column in zip(*scores, strict=True)]
    assert got == pytest.approx(expected, abs=0.02)


def test_bundled_model_segments_nodules(plan):
    """The GED on 40 val slices is 0.85 for empty maps and 0.26 for the repeated majority vote of the raters."""
    model = stochseg.load("lidc")
    items = [item for item in plan.items if item.split == "val"][::65][:40]
    scores = []
    for item in items:
        record = item.read()
        raters = torch.from_numpy(np.asarray(record.raters)).long()[None]
        out = model.sample(np.asarray(record.image), 16)
        scores.append(ged(out.labels, raters, 2).item())
    assert np.mean(scores) < 0.25  # measured: 0.228
