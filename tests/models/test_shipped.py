"""Models in the box: they load by name, fit, sample, and come with a card."""

import numpy as np
import pytest
import torch

import stochseg
from stochseg.errors import UserError
from stochseg.models.io import SHIPPED, WEIGHTS, shipped

names = pytest.mark.parametrize("name", shipped())


def test_lidc_is_in_the_box():
    assert "lidc" in shipped()


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
    for word in ("licence", "split", "ged", "not a medical device"):
        assert word in card, word


def test_a_folder_of_that_name_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
