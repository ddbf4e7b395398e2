"""Models in the box: they load by name, fit, sample, and come with a card."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import stochseg
from stochseg.errors import UserError
from stochseg.models.io import SHIPPED, WEIGHTS, list_bundled

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
names = pytest.mark.parametrize("name", list_bundled())


def test_lidc_is_in_the_box():
    assert "lidc" in list_bundled()


@names
def test_a_shipped_model_loads_by_its_name_and_samples(name):
    model = stochseg.load(name)
    assert not model.training
    assert all(p.dtype == torch.float32 for p in model.parameters())
    size = (128, 128) if model.image_channels == 1 else (128, 128, model.image_channels)
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    out = model.sample(image, 2)
    assert out.labels.shape == (1, 2, 128, 128)
    assert out.evaluations <= 10


@names
def test_it_fits_and_has_a_card(name):
    assert (SHIPPED / name / WEIGHTS).stat().st_size <= 16e6
    card = (SHIPPED / f"{name}.md").read_text().lower()
    for word in ("license", "split", "ged", "not a medical device"):
        assert word in card, word


@names
def test_it_knows_where_its_entropy_falls(name):
    profile = stochseg.load(name).config.profile
    assert len(profile) > 10
    assert min(profile)[1] < max(profile)[1]


@names
def test_the_card_says_what_was_measured(name):
    (file,) = RESULTS.glob(f"{name}-val-*.csv")
    rows = [*csv.DictReader(file.open())]
    card = (SHIPPED / f"{name}.md").read_text()
    digits = {"ged_16": 4, "ged_unbiased": 4, "hm_iou_16": 4, "diversity_16": 3, "miou": 3}
    digits |= {"ece": 4, "ece_foreground": 3, "brier": 4}
    assert len(rows) == 6
    for row in rows:
        scores = [f"{float(row[key]):.{count}f}" if row[key] else "–" for key, count in digits.items()]
        assert f"| {row['noise']} | {row['seed']} | {' | '.join(scores)} |\n" in card


def test_a_model_of_that_name_goes_first_and_any_other_folder_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lidc").mkdir()
    assert stochseg.load("lidc").config.components == 8
    (tmp_path / "lidc" / "train.yaml").touch()
    with pytest.raises(UserError, match=r"no model at lidc: expected model\.safetensors"):
        stochseg.load("lidc")
    (tmp_path / "lidc" / "train.yaml").unlink()
    tiny = stochseg.create("ccdm-fast", 3, 2, tower=[4], light=[4])
    stochseg.save(tiny, tmp_path / "lidc")
    assert stochseg.load("lidc").num_classes == 3


def test_an_unknown_name_lists_the_shipped_ones():
    with pytest.raises(UserError, match=r"shipped model \(.*lidc.*\)"):
        stochseg.load("ldic")


def test_half_size_weights_are_nearly_the_same_model(tmp_path):
    model = stochseg.create("ccdm-fast", 2, 1, tower=[8, 8], light=[8, 8])
    whole, half = (stochseg.save(model, tmp_path / kind, half=kind == "half") for kind in ("whole", "half"))
    assert (half / WEIGHTS).stat().st_size < 0.6 * (whole / WEIGHTS).stat().st_size
    a, b = (stochseg.load(folder).state_dict() for folder in (whole, half))
    for key, value in a.items():
        torch.testing.assert_close(b[key], value, rtol=1e-3, atol=1e-6)
        assert b[key].dtype == value.dtype


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_a_saved_model_may_be_read_by_whom_the_umask_lets(tmp_path, mask, file, folder):
    before = os.umask(mask)
    try:
        saved = stochseg.save(stochseg.create("ccdm-fast", 2, 1, tower=[4], light=[4]), tmp_path / "model")
    finally:
        os.umask(before)
    assert saved.stat().st_mode & 0o777 == folder
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {file}
