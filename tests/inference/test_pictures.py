"""Pictures as inputs: formats, sizes, channels, and notices about implausible ones."""

import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from stochseg.inference import predict
from stochseg.inference.stacks import read_picture
from stochseg.types import DatasetInfo
from tests.support.predictions import QUICK, RNG, failure, gray, read_result, small_model


@pytest.mark.parametrize("form", ["png", "jpg", "tif", "bmp"])
def test_picture_formats(model, tmp_path, form):
    Image.fromarray(gray()).save(tmp_path / f"a.{form}")
    assert predict(model, [tmp_path / f"a.{form}"], tmp_path / "out", QUICK)[0].status == "done"


def test_one_bit_and_palette_pictures_are_read_as_intensities(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "bit.png")
    assert read_picture(tmp_path / "bit.png").values[0].tolist() == [[255, 0]]
    indexed = Image.fromarray(np.array([[0, 1]], np.uint8), mode="P")
    indexed.putpalette([1, 2, 3, 4, 5, 6])
    indexed.save(tmp_path / "indexed.png")
    assert read_picture(tmp_path / "indexed.png").values[0].tolist() == [[[1, 2, 3], [4, 5, 6]]]


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (33, 17)])
def test_any_size(model, tmp_path, size):
    Image.fromarray(gray(*size)).save(tmp_path / "a.png")
    (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", QUICK)
    assert tifffile.imread(outcome.folder / "samples.tif").reshape(3, -1).shape == (3, size[0] * size[1])


def test_deep_float_and_color_pictures(model, tmp_path):
    deep = RNG.integers(0, 60_000, (12, 14)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(RNG.uniform(0, 255, (12, 14)).astype(np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(RNG.uniform(-1000, 400, (12, 14)).astype(np.float32)).save(tmp_path / "hounsfield.tif")
    outcomes = {Path(o.source).stem: o for o in predict(model, [tmp_path], tmp_path / "out", QUICK)}
    for name in ("deep", "hounsfield"):
        assert re.search(r"0\.\.255.*--allow-unusual-input", outcomes[name].problem)
    assert (outcomes["float"].status, outcomes["float"].notices) == ("done", ())
    measured = small_model(
        info=DatasetInfo(num_classes=2, image_channels=1, normalization={"mean": [-400], "std": [300]})
    )
    deep, hounsfield = predict(measured, [tmp_path / "deep.png", tmp_path / "hounsfield.tif"], tmp_path / "ct", QUICK)
    assert deep.status == "failed"
    assert (hounsfield.status, hounsfield.notices) == ("done", ())
    Image.fromarray(RNG.random((12, 14)).astype(np.float32)).save(tmp_path / "unit.tif")
    Image.fromarray(np.zeros((12, 14), np.float32)).save(tmp_path / "black.tif")
    files = [tmp_path / "unit.tif", tmp_path / "black.tif"]
    unit, black = predict(model, files, tmp_path / "out", QUICK)
    assert "multiply it by 255" in unit.problem
    assert (black.status, black.notices) == ("done", ())
    (anyway,) = predict(model, files[:1], tmp_path / "out", QUICK.model_copy(update={"allow_unusual_input": True}))
    assert "fractions" in anyway.notices[0]
    assert read_result(anyway.folder)["notices"] == list(anyway.notices)
    color = small_model(channels=3)
    Image.fromarray(RNG.integers(0, 256, (12, 14, 3), dtype=np.uint8)).save(tmp_path / "rgb.png")
    (outcome,) = predict(color, [tmp_path / "rgb.png"], tmp_path / "out", QUICK)
    assert (outcome.status, outcome.notices) == ("done", ())


def test_notice_if_the_model_labels_only_the_center(tmp_path):
    """Without it, a model of nodules would find nothing in a slice of a whole chest, and nobody would know why."""
    network = small_model(focus=8)
    for name, side in (("fit", 16), ("large", 40)):
        Image.fromarray(gray(side, side)).save(tmp_path / f"{name}.png")
    fit, large = predict(network, [tmp_path], tmp_path / "out", QUICK)
    assert not any("labels the central" in notice for notice in fit.notices)
    assert "labels the central 8×8 of its 40×40 pixels" in large.notices[0]


def test_foreground_at_the_border_of_the_labeled_part_is_noticed(tmp_path):
    """An object that is cut off there with a straight edge looks like a finding."""
    network = small_model(focus=8)
    Image.fromarray(gray(16, 20)).save(tmp_path / "a.png")
    (outcome,) = predict(network, [tmp_path / "a.png"], tmp_path / "out", QUICK)
    assert "border of the central 8×8" in outcome.notices[-1]
    record = read_result(outcome.folder)
    assert record["window"] == [[4, 12], [6, 14]]
    assert record["notices"] == list(outcome.notices)
    (whole,) = predict(small_model(), [tmp_path / "a.png"], tmp_path / "whole", QUICK)
    assert whole.notices == ()
    assert read_result(whole.folder)["window"] is None


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_input_without_finite_output_fails_alone(tmp_path, bad, monkeypatch):
    """The inputs of a batch share one call of the network; the others must not be lost."""
    monkeypatch.setattr("stochseg.inference.chunks.MIN_CHUNKS", 1)
    network = small_model()
    for i in range(3):
        raw = gray(16, 16).astype(np.float32)
        raw[3, 3] = -3.4e38 if i == bad else raw[3, 3]
        tifffile.imwrite(tmp_path / f"{i}.tif", raw)
    options = QUICK.model_copy(update={"allow_unusual_input": True})
    outcomes = predict(network, [tmp_path], tmp_path / "out", options)
    assert [o.status for o in outcomes] == ["failed" if i == bad else "done" for i in range(3)]
    assert "NaN or infinite" in outcomes[bad].problem
    assert not (tmp_path / "out" / str(bad)).exists()
    refused = predict(network, [tmp_path], tmp_path / "other", QUICK)[0]  # before any work
    assert (Path(refused.source).stem, "--allow-unusual-input" in refused.problem) == (str(bad), True)


def test_notice_if_training_images_were_resized(tmp_path):
    """Training resizes images (`data.size`) and prediction does not, so objects are of another scale."""
    for name, side in (("fit", 16), ("large", 40)):
        Image.fromarray(gray(side, side)).save(tmp_path / f"{name}.png")
    network = small_model(info=DatasetInfo(num_classes=2, image_channels=1, size=(16, 16)))
    fit, large = predict(network, [tmp_path], tmp_path / "out", QUICK)
    assert fit.notices == ()
    (notice,) = large.notices
    assert re.search("its 40×40 pixels are not resized.* resized to 16×16", notice)


@pytest.mark.parametrize(("channels", "form"), [(1, "LA"), (3, "RGBA")])
def test_alpha_is_dropped_with_a_notice(tmp_path, channels, form):
    raw = RNG.integers(0, 256, (12, 14, channels + 1), dtype=np.uint8)
    Image.fromarray(raw, mode=form).save(tmp_path / "a.png")
    network = small_model(channels=channels)
    (outcome,) = predict(network, [tmp_path / "a.png"], tmp_path / "out", QUICK)
    assert outcome.notices == ("its alpha channel (opacity) was dropped",)
    assert read_result(outcome.folder)["notices"] == list(outcome.notices)
    expected = network.sample(raw[..., :-1], 3).labels[0].numpy()
    assert (tifffile.imread(outcome.folder / "samples.tif") == expected).all()


def test_color_for_a_gray_model_is_refused(model, tmp_path):
    for i, channels in enumerate((3, 4)):
        Image.fromarray(RNG.integers(0, 256, (8, 8, channels), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        message = failure(model, tmp_path / f"{i}.png", tmp_path)
        assert f"1 channel(s), got {channels}" in message


def test_gray_for_a_color_model_is_refused(tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    assert "3 channel(s), got 1" in failure(small_model(channels=3), tmp_path / "a.png", tmp_path)


def test_nan_is_refused(model, tmp_path):
    raw = RNG.normal(0, 1, (8, 8)).astype(np.float32)
    raw[2, 3] = np.nan
    Image.fromarray(raw).save(tmp_path / "a.tif")
    assert "1 value(s) are NaN or infinite" in failure(model, tmp_path / "a.tif", tmp_path)
    volume = np.zeros((8, 8, 3), np.float32)
    volume[1, 1, 2] = np.inf
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
    assert "slice 2: image: 1 value(s) are NaN or infinite" in failure(model, tmp_path / "a.nii", tmp_path)


def test_resolutions_beyond_the_range_of_png_are_dropped(model, tmp_path):
    image = np.zeros((9, 9), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", image, resolution=(1e8, 1e8), resolutionunit="CENTIMETER")
    (outcome,) = predict(model, [tmp_path / "a.tif"], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    with Image.open(outcome.folder / "fused.png") as picture:
        assert "dpi" not in picture.info
