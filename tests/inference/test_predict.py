"""`stochseg predict`: what goes in, what comes out, what is skipped with its reason, and large images in windows."""

import json
import os
import re
import struct
import sys
import zlib

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK
import tifffile
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import Options, predict
from stochseg.inference.series import read_series
from stochseg.inference.sources import find_sources
from stochseg.inference.stacks import read_nifti, read_picture
from stochseg.models import load, save
from stochseg.models.ccdm_fast import CCDMFast
from stochseg.types import DatasetInfo
from tests.support.oblique import expected_affine, lively, of_hounsfield, write_series

QUICK = Options(samples=3)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model():
    return lively()


@pytest.fixture(scope="module")
def ct_model():
    return of_hounsfield()


def gray(h=20, w=24):
    return RNG.integers(0, 256, (h, w), dtype=np.uint8)


def problem(model, file, tmp_path, options=QUICK) -> str:
    (outcome,) = predict(model, [file], tmp_path / "out", options)
    assert outcome.status == "failed"
    assert list((tmp_path / "out").iterdir()) == []
    return outcome.problem


def result(folder):
    return json.loads((folder / "result.json").read_text())


# --- pictures ---------------------------------------------------------------------------------------------


def test_a_picture_gets_the_samples_that_the_model_draws(model, tmp_path):
    raw = gray()
    Image.fromarray(raw).save(tmp_path / "a.png")
    (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", Options(samples=5, seed=2, steps=4), origin="m")
    assert (outcome.status, outcome.folder) == ("done", tmp_path / "out/a")
    drawn = model.sample(raw, 5, seed=2, evaluations=4)
    assert (tifffile.imread(tmp_path / "out/a/samples.tif") == drawn.labels[0].numpy()).all()
    assert np.allclose(tifffile.imread(tmp_path / "out/a/mean.tif"), drawn.mean[0], atol=1e-6)
    record = result(tmp_path / "out/a")
    assert record["options"]["seed"] == 2
    assert record["evaluations"] == 4
    assert (record["model"]["name"], record["model"]["origin"]) == ("ccdm-fast", "m")
    assert record["inputs"][0]["file"] == str(tmp_path / "a.png")
    assert {"stochseg", "torch", "tifffile"} <= set(record["versions"])
    assert record["seconds"] > 0


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


def test_images_of_one_size_share_calls_and_change_nothing(model, tmp_path, monkeypatch):
    raws = [gray() for _ in range(5)] + [gray(9, 9)]
    for i, raw in enumerate(raws):
        Image.fromarray(raw).save(tmp_path / f"{i}.png")
    sizes = []
    sample = type(model).sample
    monkeypatch.setattr(
        type(model), "sample", lambda self, x, *a, **k: sizes.append(len(x)) or sample(self, x, *a, **k)
    )
    monkeypatch.setattr(sys.modules["stochseg.inference.pipeline"], "AT_ONCE", 3 * 3 * 20 * 24)
    outcomes = predict(model, [str(tmp_path / "*.png")], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["done"] * 6
    assert sizes == [3, 2, 1]
    for i, raw in enumerate(raws):
        expected = sample(model, raw, 3).labels[0].numpy()
        assert (tifffile.imread(tmp_path / f"out/{i}/samples.tif") != expected).mean() <= 1e-2


def test_progress_runs_to_the_number_of_inputs(model, tmp_path):
    for name in "ab":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    seen = []
    predict(model, [tmp_path, "nowhere.png"], tmp_path / "out", QUICK, progress=lambda d, t: seen.append((d, t)))
    assert {total for _, total in seen} == {3}
    done = [d for d, _ in seen]
    assert done[-1] == 3
    assert any(d != int(d) for d in done), "a call is several steps"


def test_deep_float_and_color_pictures(model, tmp_path):
    deep = RNG.integers(0, 60_000, (12, 14)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(RNG.uniform(0, 255, (12, 14)).astype(np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(RNG.uniform(-1000, 400, (12, 14)).astype(np.float32)).save(tmp_path / "hounsfield.tif")
    outcomes = {o.folder.name: o for o in predict(model, [tmp_path], tmp_path / "out", QUICK)}
    for name in ("deep", "hounsfield"):
        assert "are not the gray levels 0..255 that the model takes" in outcomes[name].notices[0]
    assert outcomes["float"].notices == ()
    measured = lively(info=DatasetInfo(num_classes=2, image_channels=1, normalization={"mean": [-400], "std": [300]}))
    deep, hounsfield = predict(measured, [tmp_path / "deep.png", tmp_path / "hounsfield.tif"], tmp_path / "ct", QUICK)
    assert re.search(r"reach \d+ standard deviations from what the model was trained on", deep.notices[0])
    assert hounsfield.notices == ()
    Image.fromarray(RNG.random((12, 14)).astype(np.float32)).save(tmp_path / "unit.tif")
    Image.fromarray(np.zeros((12, 14), np.float32)).save(tmp_path / "black.tif")
    files = [tmp_path / "unit.tif", tmp_path / "black.tif"]
    unit, black = predict(model, files, tmp_path / "out", QUICK)
    assert re.fullmatch(r"its intensities 0\.\S+ differ by 0\.007\d standard deviations .*units\?", unit.notices[0])
    assert black.notices == ()
    color = lively(channels=3)
    Image.fromarray(RNG.integers(0, 256, (12, 14, 3), dtype=np.uint8)).save(tmp_path / "rgb.png")
    (outcome,) = predict(color, [tmp_path / "rgb.png"], tmp_path / "out", QUICK)
    assert (outcome.status, outcome.notices) == ("done", ())


def test_a_model_of_the_centre_says_so_of_larger_images(tmp_path):
    """A slice of a whole chest, given to a model of nodules, would come out empty without a word."""
    network = lively(focus=8)
    for name, side in (("fit", 16), ("large", 40)):
        Image.fromarray(gray(side, side)).save(tmp_path / f"{name}.png")
    fit, large = predict(network, [tmp_path], tmp_path / "out", QUICK)
    assert fit.notices == ()
    assert "labels the central 8×8 of its 40×40 pixels" in large.notices[0]


def test_odd_nifti_headers_are_told_and_the_others_done(model, tmp_path):
    for name in ("a", "b", "c"):
        nibabel.Nifti1Image(np.zeros((9, 9, 1), np.uint8), np.eye(4)).to_filename(tmp_path / f"{name}.nii")
    unit, place = (bytearray((tmp_path / "c.nii").read_bytes()) for _ in range(2))
    unit[123] = 5  # no unit of length
    place[254:256], place[280:284] = struct.pack("<h", 1), struct.pack("<f", np.nan)  # sform_code, srow_x
    (tmp_path / "a.nii").write_bytes(unit)
    (tmp_path / "b.nii").write_bytes(place)
    a, b, c = predict(model, [tmp_path / f"{name}.nii" for name in "abc"], tmp_path / "out", QUICK)
    assert [outcome.status for outcome in (a, b, c)] == ["failed", "failed", "done"]
    assert "cannot be read as NIfTI" in a.problem
    assert "its affine" in b.problem


def test_microscopic_sizes_are_not_rounded_away(model, tmp_path):
    image = nibabel.Nifti1Image(np.zeros((9, 9, 2), np.uint8), np.diag([0.5, 0.5, 2.0, 1.0]))
    image.header.set_xyzt_units("micron")
    image.to_filename(tmp_path / "a.nii")
    (outcome,) = predict(model, [tmp_path / "a.nii"], tmp_path / "out", QUICK)
    found = result(outcome.folder)
    assert sum(one["fused"] for one in found["classes"]) == pytest.approx(162 * 0.5e-9, rel=1e-6)
    assert found["image"]["spacing_mm"] == pytest.approx([2e-3, 0.5e-3, 0.5e-3])


def test_resolutions_that_a_png_cannot_tell_are_left_out_of_it(model, tmp_path):
    image = np.zeros((9, 9), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", image, resolution=(1e8, 1e8), resolutionunit="CENTIMETER")
    (outcome,) = predict(model, [tmp_path / "a.tif"], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    with Image.open(outcome.folder / "fused.png") as picture:
        assert "dpi" not in picture.info


def test_patterns_leave_results_alone(model, tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    pattern = str(tmp_path / "in/**/*.png")
    for _ in range(2):
        assert len(predict(model, [pattern], tmp_path / "in/out", QUICK)) == 1


def test_a_model_of_resized_images_says_so_of_other_sizes(tmp_path):
    """Training brings images to one size (`data.size`), prediction takes them as they are: another scale."""
    for name, side in (("fit", 16), ("large", 40)):
        Image.fromarray(gray(side, side)).save(tmp_path / f"{name}.png")
    network = lively(info=DatasetInfo(num_classes=2, image_channels=1, size=(16, 16)))
    fit, large = predict(network, [tmp_path], tmp_path / "out", QUICK)
    assert fit.notices == ()
    (notice,) = large.notices
    assert notice.startswith(
        "its 40×40 pixels are taken as they are, but the model was trained on images brought to 16×16"
    )


@pytest.mark.parametrize(("channels", "form"), [(1, "LA"), (3, "RGBA")])
def test_alpha_is_left_out_with_a_notice(tmp_path, channels, form):
    raw = RNG.integers(0, 256, (12, 14, channels + 1), dtype=np.uint8)
    Image.fromarray(raw, mode=form).save(tmp_path / "a.png")
    network = lively(channels=channels)
    (outcome,) = predict(network, [tmp_path / "a.png"], tmp_path / "out", QUICK)
    assert outcome.notices == ("its alpha channel (opacity) was left out",)
    assert result(outcome.folder)["notices"] == list(outcome.notices)
    expected = network.sample(raw[..., :-1], 3).labels[0].numpy()
    assert (tifffile.imread(outcome.folder / "samples.tif") == expected).all()


# --- bad input --------------------------------------------------------------------------------------------


def test_color_for_a_grey_model_is_refused(model, tmp_path):
    for i, channels in enumerate((3, 4)):
        Image.fromarray(RNG.integers(0, 256, (8, 8, channels), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        said = problem(model, tmp_path / f"{i}.png", tmp_path)
        assert f"trained on 1 channel(s), got {channels}; convert it to gray scale" in said


def test_grey_for_a_color_model_is_refused(tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    assert "trained on 3 channel(s), got 1" in problem(lively(channels=3), tmp_path / "a.png", tmp_path)


def test_nan_is_refused(model, tmp_path):
    raw = RNG.normal(0, 1, (8, 8)).astype(np.float32)
    raw[2, 3] = np.nan
    Image.fromarray(raw).save(tmp_path / "a.tif")
    assert "1 value(s) are NaN or infinite" in problem(model, tmp_path / "a.tif", tmp_path)
    volume = np.zeros((8, 8, 3), np.float32)
    volume[1, 1, 2] = np.inf
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
    assert "slice 2: image: 1 value(s) are NaN or infinite" in problem(model, tmp_path / "a.nii", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"not an image", "cannot be read as an image (no known format)"),
        ("a.png", b"\x89PNG\r\n\x1a\n and then nothing", "cannot be read as an image"),
        ("a.nii", b"short", "cannot be read as NIfTI"),
        ("a.nii.gz", zlib.compress(b"no gzip"), "cannot be read as NIfTI"),
        ("a.dcm", b"not DICOM", "cannot be read as DICOM: its mark is missing"),
        ("b.dcm", bytes(128) + b"DICM" + b"\xff" * 50, "SOPClassUID"),
        ("empty.png", b"", "the file is empty, 0 bytes"),
        ("empty.dcm", b"", "the file is empty, 0 bytes"),
        ("cut.nii", nibabel.Nifti1Image(np.zeros((9, 9, 9)), np.eye(4)).to_bytes()[:999], "it is damaged or cut short"),
    ],
)
def test_what_is_no_image_is_skipped_and_the_others_are_done(model, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    Image.fromarray(gray()).save(tmp_path / "good.png")
    outcomes = predict(model, [tmp_path / name, tmp_path / "good.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert message in outcomes[0].problem
    assert "\n" not in outcomes[0].problem
    assert str(tmp_path / name) not in outcomes[0].problem.split("(")[0], "which is said before"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["good"]


def test_folders_and_patterns_without_images(model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/readme.md").write_text("hello")
    given = [tmp_path / "empty", tmp_path / "text", tmp_path / "*.png", tmp_path / "nowhere.png"]
    outcomes = predict(model, given, tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed"] * 4
    messages = ["contains no image", "contains no image", "no file matches this pattern", "no such file or folder"]
    assert all(message in o.problem for message, o in zip(messages, outcomes, strict=True))
    assert not (tmp_path / "out").exists()


def test_nothing_is_begun_where_nothing_can_be_written(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(UserError, match=r"cannot write to .*: \S+file is a file, expected a folder; give another"):
            predict(model, [tmp_path / "a.png"], out, QUICK)
    if sys.platform == "linux":  # where not even root makes folders
        with pytest.raises(UserError, match="cannot write to /sys"):
            predict(model, [tmp_path / "a.png"], "/sys/out", QUICK)
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(UserError, match="Permission denied"):
            predict(model, [tmp_path / "a.png"], tmp_path / "closed", QUICK)


def test_a_foreign_folder_of_the_same_name_is_left_alone(model, tmp_path):
    for name in "ab":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    (tmp_path / "out/a").mkdir(parents=True)
    (tmp_path / "out/a/thesis.txt").write_text("years of work")
    outcomes = predict(model, [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert "not a result of stochseg predict" in outcomes[0].problem
    assert (tmp_path / "out/a/thesis.txt").exists()


@pytest.mark.parametrize("option", ["sampler", "grid", "noise"])
def test_unknown_options_are_told_before_anything_is_done(model, tmp_path, option):
    with pytest.raises(UserError, match=f"unknown .*{option} 'magic'"):
        predict(model, [tmp_path], tmp_path / "out", Options(**{option: "magic"}))
    assert not (tmp_path / "out").exists()


def test_too_little_memory_is_told_and_the_others_are_done(model, tmp_path, monkeypatch):
    for name in "ab":
        Image.fromarray(gray(8, 8 if name == "a" else 9)).save(tmp_path / f"{name}.png")
    sample = type(model).sample

    def short(self, image, *args, **kwargs):
        if image.shape[-1] == 8:
            torch.empty(2**60)
        return sample(self, image, *args, **kwargs)

    monkeypatch.setattr(type(model), "sample", short)
    outcomes = predict(model, [tmp_path], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert "does not fit into memory" in outcomes[0].problem


# --- what is in a folder, and what results are called -------------------------------------------------------


def test_a_folder_is_searched_to_the_bottom_but_not_its_results(model, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    Image.fromarray(gray()).save(tmp_path / "in/deep/b.PNG")
    nibabel.Nifti1Image(np.zeros((6, 7, 2), np.int16), np.eye(4)).to_filename(tmp_path / "in/scan.v1.nii.gz")
    (tmp_path / "in/notes.txt").write_text("hello")
    (tmp_path / "in/.hidden.png").write_bytes(b"")
    outcomes = predict(model, [tmp_path / "in"], tmp_path / "in/out", QUICK)
    assert [o.notices for o in outcomes if o.status == "note"] == [
        (f"{tmp_path / 'in'}: skipped 1 file(s) that are not images",)
    ]
    assert sorted(p.name for p in (tmp_path / "in/out").iterdir()) == ["a", "deep-b", "scan.v1"]
    again = predict(model, [tmp_path / "in"], tmp_path / "in/out", QUICK)
    assert sorted(o.status for o in again) == ["kept", "kept", "kept", "note"]


def test_equal_names_are_told_apart_or_refused(tmp_path):
    files = [tmp_path / name for name in ("a.png", "a.tif", "p1/ct/a.png", "p2/ct/a.png", "deep/b.png", "deep-b.png")]
    for file in files:
        file.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(gray()).save(file)

    def names(*given):
        return [s.name for s in find_sources(given).sources]

    assert names(files[0], files[1], tmp_path / "p1/../a.png") == ["a.png", "a.tif"]
    assert names(files[2], files[3]) == ["p1-ct-a.png", "p2-ct-a.png"]
    assert names(tmp_path / "p1/ct", tmp_path / "p2/ct") == ["p1-a.png", "p2-a.png"]
    with pytest.raises(UserError, match=r"several inputs would be written to the folder '.*deep-b.png'.*another --out"):
        names(tmp_path)


def test_globs(tmp_path):
    (tmp_path / "x/y").mkdir(parents=True)
    for name in ("x/1.png", "x/y/2.png", "x/[3].png"):
        Image.fromarray(gray()).save(tmp_path / name)
    assert [s.name for s in find_sources([str(tmp_path / "**/*.png")]).sources] == ["1", "[3]", "2"]
    assert [s.name for s in find_sources([str(tmp_path / "x/[3].png")]).sources] == ["[3]"], "a name before a pattern"


# --- going on ---------------------------------------------------------------------------------------------


def test_complete_results_are_kept_and_broken_ones_made_again(model, tmp_path, monkeypatch):
    for name in "abc":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    files = [tmp_path / f"{name}.png" for name in "abc"]
    predict(model, files[:2], tmp_path / "out", QUICK)
    stamp = (tmp_path / "out/a/result.json").stat().st_mtime_ns
    (tmp_path / "out/b/mean.tif").unlink()
    outcomes = predict(model, files, tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["kept", "done", "done"]
    assert (tmp_path / "out/a/result.json").stat().st_mtime_ns == stamp
    assert (tmp_path / "out/b/mean.tif").exists()
    assert [o.status for o in predict(model, files, tmp_path / "out", QUICK, overwrite=True)] == ["done"] * 3


def test_an_overview_is_added_to_results_without_one_and_kept_in_those_with_one(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    status = []
    for overview in (False, True, True, False):
        options = QUICK.model_copy(update={"overview": overview})
        (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", options)
        status.append(outcome.status)
    assert status == ["done", "done", "kept", "kept"]
    assert (tmp_path / "out/a/overview.png").is_file()


def test_results_of_something_else_are_not_taken_for_these(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    predict(model, [tmp_path / "a.png"], tmp_path / "out", QUICK)

    def said(network=model, options=QUICK):
        (outcome,) = predict(network, [tmp_path / "a.png"], tmp_path / "out", options)
        assert outcome.status == "failed"
        return outcome.problem

    assert "holds a result of another samples, seed; replace it with --overwrite" in said(options=Options(seed=1))
    other = lively()
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    assert "another model;" in said(other)
    Image.fromarray(gray()).save(tmp_path / "a.png")
    assert "another input;" in said()


def test_an_interrupted_call_leaves_whole_results_only(model, tmp_path, monkeypatch):
    for name, width in (("a", 8), ("b", 9)):
        Image.fromarray(gray(8, width)).save(tmp_path / f"{name}.png")
    sample = type(model).sample

    def stop(self, image, *args, **kwargs):
        if image.shape[-1] == 9:
            raise KeyboardInterrupt
        return sample(self, image, *args, **kwargs)

    monkeypatch.setattr(type(model), "sample", stop)
    with pytest.raises(KeyboardInterrupt):
        predict(model, [tmp_path], tmp_path / "out", QUICK)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    outcomes = predict(model, [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["kept", "done"]


# --- NIfTI ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_nifti_volume_keeps_its_geometry(ct_model, tmp_path, axis):
    volume = RNG.integers(-1000, 1000, (7, 6, 5)).astype(np.int16)
    image = nibabel.Nifti1Image(volume, expected_affine())
    image.header.set_sform(expected_affine(), code="scanner")
    image.to_filename(tmp_path / "scan.nii.gz")
    options = Options(samples=3, axis=axis)
    (outcome,) = predict(ct_model, [tmp_path / "scan.nii.gz"], tmp_path / "out", options)
    along = 2 if axis is None else axis
    for name, shape in (
        ("samples", (7, 6, 5, 3)),
        ("fused", (7, 6, 5)),
        ("mean", (7, 6, 5, 3)),
        ("entropy", (7, 6, 5)),
    ):
        file = nibabel.load(outcome.folder / f"{name}.nii.gz")
        assert file.shape == shape
        assert np.allclose(file.affine, expected_affine(), atol=1e-5)
        assert int(file.header["sform_code"]) == 1
    samples = np.asarray(nibabel.load(outcome.folder / "samples.nii.gz").dataobj)
    for i in range(volume.shape[along]):
        expected = ct_model.sample(np.take(volume, i, along).T, 3).labels[0].numpy()
        assert (np.take(samples, i, along).transpose(2, 1, 0) != expected).mean() <= 1e-2
    record = result(outcome.folder)
    voxel = abs(np.linalg.det(expected_affine()[:3, :3]))
    assert sum(c["fused"] for c in record["classes"]) == pytest.approx(volume.size * voxel, rel=1e-4)
    assert record["unit"] == "mm3"


def test_simpleitk_sees_the_same_space(ct_model, tmp_path):
    nibabel.Nifti1Image(np.zeros((7, 6, 5), np.int16), expected_affine()).to_filename(tmp_path / "scan.nii.gz")
    predict(ct_model, [tmp_path / "scan.nii.gz"], tmp_path / "out", QUICK)
    before, after = (SimpleITK.ReadImage(str(tmp_path / f)) for f in ("scan.nii.gz", "out/scan/fused.nii.gz"))
    for point in ((0, 0, 0), (6, 5, 4), (3, 1, 2)):
        assert np.allclose(before.TransformIndexToPhysicalPoint(point), after.TransformIndexToPhysicalPoint(point))


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 1), (7, 1, 6), (1, 7, 6), (7, 6, 1, 1)])
def test_a_nifti_image_of_two_dimensions_is_one_slice(ct_model, tmp_path, shape):
    values = RNG.integers(-1000, 1000, shape).astype(np.int16)
    nibabel.Nifti1Image(values, expected_affine()).to_filename(tmp_path / "a.nii")
    (outcome,) = predict(ct_model, [tmp_path / "a.nii"], tmp_path / "out", QUICK)
    samples = np.asarray(nibabel.load(outcome.folder / "samples.nii.gz").dataobj)
    assert samples.shape == (*(*shape, 1)[:3], 3)
    expected = ct_model.sample(values.squeeze().T, 3).labels[0].numpy()
    assert (samples.squeeze().transpose(2, 1, 0) == expected).all()
    assert result(outcome.folder)["unit"] == "mm2"


def test_scaled_and_metre_and_channel_nifti(tmp_path):
    image = nibabel.Nifti1Image(RNG.integers(0, 99, (4, 5, 2)).astype(np.int16), np.diag([0.001, 0.002, 0.003, 1]))
    image.header.set_xyzt_units("meter")
    image.header.set_slope_inter(2.0, -1000.0)
    image.to_filename(tmp_path / "a.nii")
    stack = read_nifti(tmp_path / "a.nii")
    assert np.allclose(stack.values[1], np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)[:, :, 1].T)
    assert stack.lattice.spacing == pytest.approx((3.0, 2.0, 1.0))
    assert stack.lattice.voxel == pytest.approx(6.0)
    nibabel.Nifti1Image(np.zeros((4, 5, 2, 3), np.float32), np.eye(4)).to_filename(tmp_path / "c.nii")
    assert read_nifti(tmp_path / "c.nii").values.shape == (2, 5, 4, 3)
    outcome = predict(lively(channels=3), [tmp_path / "c.nii"], tmp_path / "out", QUICK)[0]
    assert nibabel.load(outcome.folder / "fused.nii.gz").shape == (4, 5, 2)


# --- DICOM ------------------------------------------------------------------------------------------------


def test_a_dicom_series_keeps_its_geometry(ct_model, tmp_path):
    raw = write_series(tmp_path / "ct")
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    assert outcome.folder.name == "ct"
    samples = nibabel.load(outcome.folder / "samples.nii.gz")
    assert np.allclose(samples.affine, expected_affine(), atol=1e-5)
    for i, slice_ in enumerate(raw):
        expected = ct_model.sample(slice_.astype(np.float32), 3).labels[0].numpy()
        assert (np.asarray(samples.dataobj)[:, :, i].transpose(2, 1, 0) != expected).mean() <= 1e-2
    fused = np.asarray(nibabel.load(outcome.folder / "fused.nii.gz").dataobj)
    volume = highdicom.seg.segread(outcome.folder / "fused.dcm").get_volume(
        combine_segments=True, skip_overlap_checks=True
    )
    for index in RNG.integers(0, (10, 12, 5), (20, 3)):
        ras = (samples.affine @ [*index, 1])[:3]
        place = volume.map_reference_to_indices((ras * [-1, -1, 1])[None])[0].round().astype(int)
        assert volume.array[tuple(place)] == fused[tuple(index)]
    assert result(outcome.folder)["image"]["spacing_mm"] == pytest.approx([2.5, 0.7, 1.3])
    assert len(result(outcome.folder)["inputs"]) == 5


def test_simpleitk_reads_the_series_and_its_results_alike(ct_model, tmp_path):
    raw = write_series(tmp_path / "ct")
    predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "ct")))
    before = reader.Execute()
    assert (SimpleITK.GetArrayFromImage(before) == raw).all()
    after = SimpleITK.ReadImage(str(tmp_path / "out/ct/fused.nii.gz"))
    assert np.allclose(before.GetOrigin(), after.GetOrigin(), atol=1e-4)
    assert np.allclose(before.GetDirection(), after.GetDirection(), atol=1e-5)
    assert np.allclose(before.GetSpacing(), after.GetSpacing(), atol=1e-5)


def test_a_missing_slice_is_told(ct_model, tmp_path):
    write_series(tmp_path / "ct", leave_out=[2])
    assert "lie 5 mm apart, most slices of the series 2.5 mm: a slice is missing" in problem(
        ct_model, tmp_path / "ct", tmp_path
    )
    slices = sorted((tmp_path / "ct").iterdir())
    outcomes = predict(ct_model, slices, tmp_path / "each", QUICK)
    assert [o.status for o in outcomes] == ["done"] * 4, "one by one they are images"
    assert nibabel.load(outcomes[0].folder / "fused.nii.gz").shape == (10, 12, 1)
    assert (outcomes[0].folder / "fused.dcm").exists()


def test_series_that_are_no_volume(ct_model, tmp_path):
    write_series(tmp_path / "twice", ImagePositionPatient=[0, 0, 0])
    assert "lie at the same place" in problem(ct_model, tmp_path / "twice", tmp_path)
    write_series(tmp_path / "lost", ImagePositionPatient=None)
    assert "has no position in space" in problem(ct_model, tmp_path / "lost", tmp_path)
    write_series(tmp_path / "turned")
    file = sorted((tmp_path / "turned").iterdir())[1]
    header = pydicom.dcmread(file)
    header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    pydicom.dcmwrite(file, header)
    assert "turned or spaced differently" in problem(ct_model, tmp_path / "turned", tmp_path)
    write_series(tmp_path / "bent", ImageOrientationPatient=[1, 0, 0, 1, 0, 0])
    assert "make no sense" in problem(ct_model, tmp_path / "bent", tmp_path)
    write_series(tmp_path / "nameless", StudyInstanceUID=None)
    assert "has no StudyInstanceUID" in problem(ct_model, tmp_path / "nameless", tmp_path)


def test_a_tilted_gantry_makes_a_sheared_volume(tmp_path):
    raw = write_series(tmp_path / "ct", count=3)
    for file in (tmp_path / "ct").iterdir():
        header = pydicom.dcmread(file)
        header.ImagePositionPatient = [0, 0.5 * (header.InstanceNumber - 1), 2.0 * (header.InstanceNumber - 1)]
        header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        pydicom.dcmwrite(file, header)
    stack = read_series(sorted((tmp_path / "ct").iterdir()))
    assert (stack.values == raw).all()
    assert np.allclose(stack.lattice.affine[:3, 2], [0, -0.5, 2.0])


def test_a_folder_of_several_series_and_other_objects(ct_model, tmp_path):
    write_series(tmp_path / "study/a", count=2)
    write_series(tmp_path / "b", count=3, SeriesNumber=9)
    for file in (tmp_path / "b").iterdir():
        file.rename(tmp_path / f"study/a/B{file.name}")
    write_series(tmp_path / "study/c", count=2)
    write_series(tmp_path / "study/seg", count=1, Modality="SEG")
    (tmp_path / "study/broken.dcm").write_bytes(b"no DICOM")
    outcomes = predict(ct_model, [tmp_path / "study"], tmp_path / "out", QUICK)
    assert "1 DICOM file(s) without an image" in outcomes[0].notices[0]
    assert {o.folder.name for o in outcomes if o.status == "done"} == {
        "study-a-series-4",
        "study-a-series-9",
        "study-c",
    }
    assert [o.source for o in outcomes if o.status == "failed"] == [str(tmp_path / "study/broken.dcm")]


def test_a_dicom_image_without_a_place_is_a_picture_with_a_resolution(ct_model, tmp_path):
    lost = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID"))
    xray = {"SOPClassUID": pydicom.uid.DigitalXRayImageStorageForPresentation, "Modality": "DX"}
    write_series(tmp_path / "xray", count=1, **xray, **lost)
    (outcome,) = predict(ct_model, [tmp_path / "xray"], tmp_path / "out", QUICK)
    assert (outcome.status, outcome.notices) == ("done", ())
    with tifffile.TiffFile(outcome.folder / "samples.tif") as file:
        assert file.pages[0].resolution == pytest.approx((25.4 / 1.3, 25.4 / 0.7), rel=1e-4)
    seg = highdicom.seg.segread(outcome.folder / "fused.dcm")
    assert seg.Rows == 12


def test_headers_that_no_seg_can_refer_to_are_noticed_before_sampling(ct_model, tmp_path):
    write_series(tmp_path / "ct", FrameOfReferenceUID=None)
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    assert "without fused.dcm: a DICOM SEG cannot refer to these images" in outcome.notices[0]
    assert "Frame Of Reference" in outcome.notices[0]
    assert "fused.nii.gz" in result(outcome.folder)["files"]
    assert not (outcome.folder / "fused.dcm").exists()


def test_slices_of_two_frames_have_no_seg(ct_model, tmp_path):
    write_series(tmp_path / "ct")
    file = sorted((tmp_path / "ct").iterdir())[2]
    header = pydicom.dcmread(file)
    header.FrameOfReferenceUID = pydicom.uid.generate_uid()
    pydicom.dcmwrite(file, header)
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    assert "without fused.dcm: its slices have different values of FrameOfReferenceUID" in outcome.notices[0]
    assert "fused.nii.gz" in result(outcome.folder)["files"]


def test_a_thickness_that_is_no_number_is_passed_over(ct_model, tmp_path):
    write_series(tmp_path / "ct", count=1)
    (file,) = (tmp_path / "ct").iterdir()
    tag = b"\x18\x00\x50\x00DS\x04\x00"
    content = file.read_bytes()
    assert tag + b"2.0 " in content
    file.write_bytes(content.replace(tag + b"2.0 ", tag + b"2,0 "))
    (outcome,) = predict(ct_model, [file], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    assert result(outcome.folder)["image"]["spacing_mm"][0] == pytest.approx(1.0)


def test_packages_of_the_extra_are_named(ct_model, tmp_path, monkeypatch):
    write_series(tmp_path / "ct", count=2)
    nibabel.Nifti1Image(np.zeros((4, 4, 2), np.int16), np.eye(4)).to_filename(tmp_path / "a.nii")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert "needs nibabel; install it with: pip install 'stochseg[medical]'" in problem(
        ct_model, tmp_path / "a.nii", tmp_path
    )
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert "needs pydicom" in problem(ct_model, tmp_path / "ct", tmp_path)


# --- large images -----------------------------------------------------------------------------------------


def test_large_images_are_cut_into_windows(model, tmp_path):
    Image.fromarray(gray(150, 90)).save(tmp_path / "a.png")
    options = Options(samples=2, tile=64, overlap=32)
    (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", options)
    assert result(outcome.folder)["tiled"] is True
    expected = model.tiled(64, 32).sample(read_picture(tmp_path / "a.png").values[0], 2).labels[0].numpy()
    assert (tifffile.imread(outcome.folder / "samples.tif") == expected).all()


def test_models_that_cannot_be_tiled_take_images_whole_up_to_a_limit(tmp_path, monkeypatch):
    Image.fromarray(gray(40, 30)).save(tmp_path / "a.png")
    focused = lively(focus=8)
    with pytest.raises(UserError, match="with focus 8 cannot be tiled"):
        predict(focused, [tmp_path / "a.png"], tmp_path / "out", Options(samples=2, tile=64, overlap=16))
    here = sys.modules["stochseg.inference.plan"]
    monkeypatch.setattr(here, "TILE", 32)
    (outcome,) = predict(focused, [tmp_path / "a.png"], tmp_path / "out", Options(samples=2))
    assert "taken whole: model 'ccdm-fast' with focus 8 cannot be tiled" in outcome.notices[0]
    assert result(outcome.folder)["tiled"] is False
    monkeypatch.setattr(here, "WHOLE", 1000)
    said = problem(focused, tmp_path / "a.png", tmp_path / "other", Options(samples=2))
    assert "40×30 pixels are too many" in said
    assert "Images up to 1,000 pixels" in said
    (outcome,) = predict(focused, [tmp_path / "a.png"], tmp_path / "third", Options(samples=2, tile=0))
    assert outcome.status == "done"


def test_a_slice_cut_short_is_told_of_and_not_passed_over(ct_model, tmp_path):
    """At the end of a series its loss would leave no gap to be found by."""
    write_series(tmp_path / "ct")
    last = tmp_path / "ct/IM003"  # the slice at the far end
    last.write_bytes(last.read_bytes()[:500])
    outcomes = {o.status: o for o in predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)}
    assert outcomes["failed"].source == str(last)
    assert "or is cut short; export it again" in outcomes["failed"].problem
    assert result(outcomes["done"].folder)["image"]["slices"] == 4


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    info = DatasetInfo(num_classes=2, image_channels=1)
    return save(lively(info=info), tmp_path / "model")


def test_the_command_and_its_exit_codes(run, saved, tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    command = ("predict", saved, tmp_path / "in", "--out", tmp_path / "out", "-n", 2, "--device", "cpu")
    code, out, _ = run(*command)
    assert code == 0
    assert f"in/a.png -> {tmp_path}/out/a" in out
    assert "1 done; results in" in out
    code, out, _ = run(*command)
    assert (code, "0 done, 1 were done before" in out) == (0, True)
    (tmp_path / "in/b.png").write_bytes(b"broken")
    code, out, err = run(*command, "--overwrite")
    assert code == 1
    assert "1 done, 1 skipped" in out
    assert "skipped: " in err
    assert "b.png: cannot be read as an image" in err
    code, _, err = run("predict", saved, tmp_path / "in", "--out", tmp_path / "other", "--tile", 40)
    assert code == 2
    assert "tile 40 and overlap 96" in err
    assert run("predict", tmp_path / "nowhere", tmp_path / "in")[0] == 2
    code, out, err = run("predict", saved, tmp_path / "no.png", "--out", tmp_path / "other")
    assert (code, out) == (1, "0 done, 1 skipped; nothing was written\n")
    assert not (tmp_path / "other").exists()


def test_the_command_samples_as_it_is_told(run, saved, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    picture, model = read_picture(tmp_path / "a.png").values[0], load(saved)
    options = {"steps": 4, "sampler": "ancestral", "grid": "even", "noise": "latin"}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert run("predict", saved, tmp_path / "a.png", "--out", tmp_path / "out", "-n", 4, *flags)[0] == 0
    got = tifffile.imread(tmp_path / "out/a/samples.tif")
    assert (got == model.sample(picture, 4, **options).labels[0].numpy()).all()
    for name in options:
        others = {key: value for key, value in options.items() if key != name}
        assert (got != model.sample(picture, 4, **others).labels[0].numpy()).any(), name


def test_ctrl_c_says_how_to_go_on(run, saved, tmp_path, monkeypatch):
    Image.fromarray(gray()).save(tmp_path / "a.png")

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(CCDMFast, "draw", stop)
    code, _, err = run("predict", saved, tmp_path / "a.png", "--out", tmp_path / "out")
    assert code == 130
    assert f"stopped; what is done is in {tmp_path / 'out'}, the same call again goes on" in err
