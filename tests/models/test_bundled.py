"""Bundled models: they load by name, sample, are small, and have a model card that agrees with the measurements."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import stochseg
from stochseg.errors import UserError
from stochseg.models.io import SHIPPED, WEIGHTS, list_bundled
from tests.support.models import fresh

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
every_bundled_model = pytest.mark.parametrize("name", list_bundled())


def test_models_of_slices_and_of_volumes_are_bundled():
    assert {"lidc", "lidc-3d", "papila"} <= {*list_bundled()}


@every_bundled_model
def test_bundled_model_loads_by_name_and_samples(name):
    model = stochseg.load(name)
    assert not model.training
    assert all(p.dtype == torch.float32 for p in model.parameters())
    space = (3, 128, 128)[-model.info.spatial_dims :]
    channels = () if model.image_channels == 1 else (model.image_channels,)
    image = np.random.default_rng(0).integers(0, 256, (*space, *channels), dtype=np.uint8)
    out = model.sample(image, 2, allow_unusual_input=True)
    assert out.labels.shape == (1, 2, *space)
    assert out.evaluations <= 10


@every_bundled_model
def test_weights_are_small_and_the_card_is_complete(name):
    assert (SHIPPED / name / WEIGHTS).stat().st_size <= 16e6
    card = (SHIPPED / f"{name}.md").read_text().lower()
    for word in ("license", "split", "ged", "not a medical device"):
        assert word in card, word


@every_bundled_model
def test_entropy_profile_was_measured(name):
    profile = stochseg.load(name).config.profile
    assert len(profile) > 10
    assert min(profile)[1] < max(profile)[1]


SLICE_DIGITS = {"ged_16": 4, "ged_unbiased": 4, "hm_iou_16": 4, "diversity_16": 3, "miou": 3}
SLICE_DIGITS |= {"ece": 4, "ece_foreground": 3, "brier": 4}
VOLUME_DIGITS = {"covered": 3, "ged": 4, "hm_iou": 4, "slice_ged": 4}


@pytest.mark.parametrize(
    ("card", "results", "about", "digits", "count"),
    [
        ("lidc", "lidc-val", ("noise", "seed"), SLICE_DIGITS, 6),
        ("lidc-3d", "lidc-3d-volumes", ("model", "slices", "seed"), VOLUME_DIGITS, 3),
        ("lidc-3d", "lidc-volumes", ("model", "slices", "seed"), VOLUME_DIGITS, 1),
    ],
)
def test_card_reports_the_measured_scores(card, results, about, digits, count):
    (file,) = RESULTS.glob(f"{results}-amd*.csv")
    with file.open(newline="") as lines:
        rows = [*csv.DictReader(lines)]
    text = (SHIPPED / f"{card}.md").read_text()
    assert len(rows) == count
    for row in rows:
        scores = [f"{float(row[key]):.{places}f}" if row[key] else "–" for key, places in digits.items()]
        assert f"| {' | '.join([row[key] for key in about] + scores)} |\n" in text


def test_card_of_papila_reports_the_measured_intervals():
    (file,) = RESULTS.glob("cup-disc-amd*.csv")
    with file.open(newline="") as lines:
        rows = [*csv.DictReader(lines)]
    text = (SHIPPED / "papila.md").read_text()
    assert [row["intervals"] for row in rows] == ["raw", "calibrated"]
    for row in rows:
        scores = [f"{float(row[key]):.3f}" for key in ("held", "width", "error_of_mean")]
        assert f"| {row['intervals']} | {' | '.join(scores)} |\n" in text
    assert f"GED_16 of these images is {float(rows[0]['ged_16']):.3f}" in text


def test_papila_reports_the_cup_disc_ratio_of_a_drawing():
    """A synthetic disc whose cup has 0.6 of its height."""
    y, x = (np.mgrid[:256, :256] - 128) / 256
    disc, cup = (np.hypot(x / 0.2, y / 0.23) < size for size in (1, 0.6))
    image = np.array([135, 50, 24]) + disc[..., None] * [45, 35, 18] + cup[..., None] * [35, 45, 25]
    samples = stochseg.load("papila").sample(image.astype(np.uint8), 4)
    ratio = stochseg.measurements(samples)[-1]
    assert ratio.name == "vertical cup/disc ratio"
    assert abs(ratio.mean - 0.6) < 0.2


def test_saved_model_takes_precedence_over_a_bundled_one(tmp_path, monkeypatch):
    """A folder of the same name that is not a model does not matter; one that is an incomplete model raises."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lidc").mkdir()
    assert stochseg.load("lidc").config.components == 8
    (tmp_path / "lidc" / "train.yaml").touch()
    with pytest.raises(UserError, match=r"lidc.*model\.safetensors"):
        stochseg.load("lidc")
    (tmp_path / "lidc" / "train.yaml").unlink()
    stochseg.save(fresh("ccdm-fast", 3), tmp_path / "lidc")
    assert stochseg.load("lidc").num_classes == 3


def test_unknown_name_lists_the_bundled_models():
    with pytest.raises(UserError, match=r"ldic.*bundled.*lidc"):
        stochseg.load("ldic")
