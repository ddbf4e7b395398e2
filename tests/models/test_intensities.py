"""Images unlike the training images are refused with the remedy; those like them never are."""

import numpy as np
import pytest
import torch
from rich.console import Console

import stochseg
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.models.intensities import describe_unusual, measure_intensities, with_intensities
from stochseg.training import train
from stochseg.types import DatasetInfo, Intensities, Normalization
from tests.support.models import lively

RNG = np.random.default_rng(5)
PHANTOMS = Phantoms("train", size=32)
ANYWAY = "allow_unusual_input=True.*--allow-unusual-input"


def trained(images, normalization=None, channels=1):
    """The smallest model that knows the intensities of raw images "h w c"."""
    normalization = normalization or Normalization()
    tensors = [normalization(torch.from_numpy(np.asarray(x, np.float32)).permute(2, 0, 1)) for x in images]
    info = DatasetInfo(num_classes=2, image_channels=channels, normalization=normalization)
    info = info.model_copy(update={"intensities": measure_intensities(tensors, normalization)})
    return lively("unet-ce", 2, channels, info=info)


@pytest.fixture(scope="module")
def of_phantoms():
    return trained([PHANTOMS.raw(i)[..., None] for i in range(64)])


@pytest.fixture(scope="module")
def of_ct():
    """Trained on Hounsfield units: air in every image, bone in some."""
    slices = [RNG.uniform(-1000, high, (16, 16, 1)) for high in np.linspace(600, 2000, 20)]
    return trained(slices, Normalization(mean=(-300.0,), std=(500.0,)))


WRONG = {
    "fractions": (lambda raw: raw / 255, "multiply it by 255"),
    "normalized": (lambda raw: raw / 127.5 - 1, "undo the scaling"),
    "standardized": (lambda raw: (raw - raw.mean()) / raw.std(), "units of the training images"),
    "Hounsfield": (lambda raw: raw * 8.0 - 1000, r"0\.\.255|far outside"),
    "16 bits": (lambda raw: raw * 257.0, "far outside"),
    "no data, float": (lambda raw: np.where(np.arange(raw.size).reshape(raw.shape) == 7, -3.4e38, raw), "no-data"),
    "no data, integer": (lambda raw: np.where(np.arange(raw.size).reshape(raw.shape) == 7, -9999, raw), "no-data"),
    "one hot pixel": (lambda raw: np.where(np.arange(raw.size).reshape(raw.shape) == 7, 1e4, raw), "no-data"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_scales_are_refused_with_the_remedy(of_phantoms, wrong):
    change, remedy = WRONG[wrong]
    image = change(Phantoms("test", size=32).raw(3).astype(np.float64)).astype(np.float32)
    with pytest.raises(UserError, match=f"(?s){remedy}.*{ANYWAY}"):
        of_phantoms.sample(image, 2)
    with pytest.raises(UserError, match=ANYWAY):  # among others, too
        of_phantoms.sample([Phantoms("test", size=32).raw(4), image], 2)
    if not wrong.startswith("no data, float"):
        assert of_phantoms.sample(image, 2, allow_unusual_input=True).labels.shape == (1, 2, 32, 32)


@pytest.mark.parametrize("power", [0.25, 4])
def test_negatives_of_dark_or_bright_images_are_refused(power):
    images = np.rint(255 * np.random.default_rng(0).random((24, 16, 16, 1)) ** power)
    model = trained(images[:12])
    for image in images[12:]:
        model.sample(image, 1)
        with pytest.raises(UserError, match="(?s)inverted.*exchange black and white.*" + ANYWAY):
            model.sample(255 - image, 1)


@pytest.mark.parametrize("scale", ["0..255", "0..1"])
def test_tensors_that_are_not_normalized_are_refused(of_phantoms, scale):
    raw = torch.from_numpy(Phantoms("test", size=32).raw(3).astype(np.float32))[None, None]
    with pytest.raises(UserError, match="(?s)pass raw intensities as a numpy array.*" + ANYWAY):
        of_phantoms.sample(raw if scale == "0..255" else raw / 255, 2)
    of_phantoms.sample(of_phantoms.info.normalization(raw), 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_always(of_phantoms, value):
    image = PHANTOMS.raw(0).astype(np.float32)
    image[3, 4] = value
    with pytest.raises(UserError, match="NaN or infinite"):
        of_phantoms.sample(image, 2, allow_unusual_input=True)


@pytest.mark.parametrize("size", [32, 128])
def test_images_of_the_same_kind_are_never_refused(of_phantoms, size):
    """False alarms would teach users to switch the check off."""
    data = Phantoms("val", size=size, count=200)
    assert [i for i in range(200) if describe_unusual(data[i].image, of_phantoms.info)] == []


def test_empty_slices_are_not_refused(of_phantoms, of_ct):
    of_phantoms.sample(np.zeros((16, 16), np.uint8), 1)
    of_phantoms.sample(np.full((16, 16), 7, np.uint8), 1)
    of_ct.sample(np.full((16, 16), -1000, np.int16), 1)


def test_models_of_other_units(of_ct):
    of_ct.sample(RNG.uniform(-1024, 3071, (16, 16)), 1)  # metal
    for wrong in (RNG.uniform(0, 1, (16, 16)), RNG.integers(0, 256, (16, 16)), np.full((16, 16), -1000.0)):
        wrong[0, 0] = -9999 if wrong.max() == -1000 else wrong[0, 0]
        with pytest.raises(UserError, match=r"-1000|-9\d\d\.\d+ or below"):
            of_ct.sample(wrong, 1)


def test_channels_of_different_units_are_checked_one_by_one():
    """CT next to PET: values that are usual in one channel are not in the other."""
    images = [np.stack([RNG.uniform(-1000, 1000, (8, 8)), RNG.uniform(0, 15, (8, 8))], -1) for _ in range(8)]
    model = trained(images, Normalization(mean=(0.0, 5.0), std=(500.0, 4.0)), channels=2)
    assert len(model.info.intensities.lowest) == 2
    model.sample(images[0], 1)
    with pytest.raises(UserError, match=ANYWAY):
        model.sample(images[0][..., ::-1], 1)


def test_a_model_without_statistics_is_checked_by_its_normalization():
    gray = lively("unet-ce")
    gray.sample(RNG.integers(0, 256, (8, 8)), 1)
    gray.sample(torch.randn(1, 1, 8, 8), 1)  # of a data set with another scale, perhaps
    for wrong in (RNG.random((8, 8)), RNG.uniform(-1000, 400, (8, 8)), torch.rand(1, 1, 8, 8) * 255):
        with pytest.raises(UserError, match=ANYWAY):
            gray.sample(wrong, 1)


def test_the_bundled_model_says_how_its_slices_were_scaled():
    model = stochseg.load("lidc")
    with pytest.raises(UserError, match="minimum and the maximum of the crop to 0 and 255"):
        model.sample(RNG.uniform(-1000, 400, (64, 64)), 1)
    for i in range(40):
        assert not describe_unusual(model.info.normalization(torch.from_numpy(PHANTOMS.raw(i)[None])), model.info)


@pytest.mark.parametrize("size", [(1, 1), (31, 128), (200, 8)])
def test_images_much_smaller_than_the_training_images(size):
    model = stochseg.load("lidc")
    image = np.resize(np.array([0, 255], np.uint8), size)
    with pytest.raises(UserError, match=rf"its {size[0]}×{size[1]} pixels .* at least 128×128; .*{ANYWAY}"):
        model.sample(image, 1)
    model.sample(image, 1, allow_unusual_input=True)
    fitting = model.info.model_copy(update={"fit": (64, 64)})  # which resizes every image
    assert not describe_unusual(model.info.normalization(torch.from_numpy(image[None]).float()), fitting)


def test_the_smallest_size_of_images_and_patches():
    data = Phantoms("train", size=16, count=2)
    assert with_intensities(data).min_size == (16, 16)
    assert with_intensities(data, (4, 8, 32)).min_size == (8, 16)


def test_measured_by_hand():
    images = [torch.tensor([[[1.0, 2.5, 3.0]]]), torch.tensor([[[2.0, 3.0, 7.0]]]), torch.tensor([[[5.0] * 3]])]
    found = measure_intensities(images, Normalization(mean=(10.0,), std=(2.0,)))
    assert found == Intensities(lowest=(12.0,), highest=(24.0,), darkest=(20.0,), span=(4.0,), medians=(0.2, 0.75))
    assert measure_intensities(images[2:], Normalization()) is None
    assert measure_intensities([], Normalization()) is None


def test_training_stores_them_with_the_model(tiny_run, tmp_path):
    model = stochseg.load(train(tiny_run("steps=1"), tmp_path / "run", device="cpu", console=Console(quiet=True)))
    data = Phantoms("train", size=8, count=10)
    assert model.info.intensities.highest == (max(data.raw(i).max() for i in range(10)),)
    assert model.info.min_size == (8, 8)
    with pytest.raises(UserError, match="multiply it by 255"):
        model.sample(RNG.random((16, 16)), 1)
