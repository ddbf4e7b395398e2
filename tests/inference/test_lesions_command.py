"""`stochseg predict` with --at, --box and --points: exit codes, and refusals without a trace."""

import nibabel
import numpy as np
import pytest
from PIL import Image

from stochseg.models import create, load, save
from stochseg.models.intensities import check_intensities
from stochseg.reports.saved_result import find_results
from tests.support.oblique import write_series, write_volume
from tests.support.predictions import gray, read_result, small_model
from tests.support.scans import ct, random_model, write_nifti


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {dims: save(random_model(dims), folder / str(dims)) for dims in (2, 3)}


@pytest.fixture
def predict(run, tmp_path):
    return lambda *arguments: run("predict", *arguments, "--out", tmp_path / "out", "-n", 2, "--device", "cpu")


@pytest.mark.parametrize("dims", [2, 3])
def test_points_boxes_and_tables(predict, models, tmp_path, dims):
    series = write_volume(tmp_path / "ct", ct())
    code, out, _ = predict(models[dims], series, "--at", "12,14,5", "--box", "8,10,4,16,18,6")
    assert code == 0
    assert "1 done; results in" in out
    assert [lesion["id"] for lesion in read_result(tmp_path / "out/ct")["lesions"]] == ["1", "2"]
    (tmp_path / "lesions.csv").write_text(f"input,id,x,y,z\n{series},left,12,14,5\n")
    code, _, err = predict(models[dims], series, "--points", tmp_path / "lesions.csv")
    assert code == 2
    assert "--overwrite" in err
    code, out, _ = predict(models[dims], series, "--points", tmp_path / "lesions.csv", "--overwrite")
    assert code == 0
    assert [path.name for path in (tmp_path / "out/ct/lesions").iterdir()] == ["left"]
    mm = ",".join(map(str, read_result(tmp_path / "out/ct")["lesions"][0]["point"]["mm"]))
    code, *_ = predict(models[dims], series, "--at", mm, "--mm", "--overwrite")
    assert code == 0
    assert read_result(tmp_path / "out/ct")["lesions"][0]["point"]["voxel"] == [12, 14, 5]


def test_a_part_of_the_scans_of_a_table(predict, models, tmp_path):
    scans = [write_nifti(tmp_path / f"{name}.nii", ct(seed=i)) for i, name in enumerate("abc")]
    rows = "".join(f"{name},left,12,14,5\n" for name in "ac")
    (tmp_path / "lesions.csv").write_text(f"input,id,x,y,z\n{rows}")
    command = (models[2], *scans, "--points", tmp_path / "lesions.csv")
    for part, found in (("2/2", {"c"}), ("1/2", {"a", "c"}), ("3/3", {"a", "c"})):
        code, _, err = predict(*command, "--part", part)
        assert code == 0
        assert "b.nii: skipped, the table has no lesion in it" in err
        assert {path.name for path in (tmp_path / "out").iterdir()} == found
    assert "2 already done" in predict(*command)[1]


REFUSED = {
    "outside": (("--at", "28,0,0"), "outside the scan"),
    "a box that is partly outside": (("--box", "0,0,0,28,3,3"), "outside the scan"),
    "not a number": (("--at", "nan,1,1"), "--at: expected 3 finite numbers"),
    "two coordinates": (("--at", "1,1"), "--at: expected 3 finite numbers"),
    "three for a box": (("--box", "1,1,1"), "--box: expected 6 finite numbers"),
    "millimeters of nothing": (("--mm",), "pass --at, --box or --points"),
    "table and point": (("--at", "1,1,1", "--points", "lesions.csv"), "--points: expected either"),
    "no table": (("--points", "nowhere.csv"), "cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_points_are_refused_without_a_trace(predict, models, tmp_path, case):
    options, message = REFUSED[case]
    code, out, err = predict(models[3], write_nifti(tmp_path / "ct.nii", ct()), *options)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()


def _without_orientation(folder):
    nibabel.Nifti1Image(np.zeros((9, 9, 9), np.int16), None).to_filename(folder / "a.nii")
    return folder / "a.nii", ("--mm",), "states no orientation"


def _picture(folder):
    Image.fromarray(gray(40, 40)).save(folder / "a.png")
    return folder / "a.png", (), "a picture is no scan"


def _gap(folder):
    write_series(folder / "ct", count=9, leave_out=[4])
    return folder / "ct", (), "a slice is missing"


def _two_series(folder):
    write_series(folder / "ct")
    write_series(folder / "other", SeriesNumber=5)
    for file in (folder / "other").iterdir():
        file.rename(folder / "ct" / f"other-{file.name}")
    return folder / "ct", (), "one of 'ct-series-4', 'ct-series-5', got no input"


def _one_slice(folder):
    return write_volume(folder / "ct", ct()[5:6]), (), "one slice, but the model segments volumes"


def _not_finite(folder):
    scan = ct().astype(np.float32)
    scan[1, 1, 1] = np.nan
    return write_nifti(folder / "a.nii", scan), (), "NaN or infinite near the point"


def _nothing(folder):
    return folder / "nowhere", (), "no such file or folder"


@pytest.mark.parametrize("options", [(), ("--at", "12,14,5")])
def test_a_file_without_orientation_is_told(predict, models, tmp_path, options):
    image = nibabel.Nifti1Image(ct().T, None)
    image.header.set_zooms((0.7, 0.7, 2.5))
    image.to_filename(tmp_path / "a.nii")
    code, out, err = predict(models[3], tmp_path / "a.nii", *options, "--allow-unusual-input")
    assert code == 0
    assert "states no orientation" in out + err
    told = [notice for notice in read_result(tmp_path / "out/a")["notices"] if "states no orientation" in notice]
    assert len(told) == 1
    assert "2.5 × 0.7 × 0.7 mm" in told[0]


@pytest.mark.parametrize("make", [_without_orientation, _picture, _gap, _two_series, _one_slice, _not_finite, _nothing])
def test_inputs_in_which_a_point_has_no_place(predict, models, tmp_path, make):
    scan, options, message = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = predict(models[3], scan, "--at", "1,1,0", *options)
    assert code == 2
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before, "nothing written, nothing lost"


def test_a_model_that_does_not_declare_its_preparation(predict, tmp_path):
    code, _, err = predict(
        save(small_model(), tmp_path / "model"), write_nifti(tmp_path / "a.nii", ct()), "--at", "1,1,1"
    )
    assert code == 2
    assert "does not declare" in err
    assert not (tmp_path / "out").exists()


def test_pages_show_lesions(predict, run, models, tmp_path):
    series = write_volume(tmp_path / "ct", ct())
    assert predict(models[3], series, "--at", "12,14,5", "--at", "5,6,7")[0] == 0
    lesions = [tmp_path / "out/ct/lesions" / name for name in ("1", "2")]
    assert find_results(tmp_path / "out") == find_results(tmp_path / "out/ct") == lesions
    code, _, err = run("report", lesions[0], "--out", tmp_path / "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert "missing or has changed" not in page
    assert "independent" not in page, "a model of volumes draws them as one"


def test_whole_scans_and_lesions_do_not_replace_each_other(predict, models, tmp_path):
    file = write_nifti(tmp_path / "ct.nii", ct())
    assert predict(models[2], file, "--at", "12,14,5")[0] == 0
    code, _, err = predict(models[2], file, "--allow-unusual-input")
    assert code == 1
    assert "another choice of lesions" in err


@pytest.mark.parametrize("factor", [0.8, 1.3, 1.6])
def test_the_bundled_model_accepts_other_contrasts(factor):
    """A window that is somewhat wider or narrower than that of the crop is no reason to refuse it."""
    model = load("lidc")
    crop = ct((1, 128, 128), (0, 64, 64), (1, 9, 8))[0].astype(np.float64)
    gray_levels = (crop - crop.min()) / (crop.max() - crop.min()) * 255
    changed = np.clip(127.5 + factor * (gray_levels - 127.5), 0, 255)
    check_intensities(model.prepare(changed)[0], model.info)
    before, after = (model.sample(values.round(), 8).frequency[0, 1] > 0.5 for values in (gray_levels, changed))
    assert (before & after).sum() / (before | after).sum() > 0.8


def test_preparations_are_saved_with_a_model(tmp_path):
    model = random_model(3, spacing=(2.0, 0.7, 0.7))
    assert load(save(model, tmp_path / "model")).info == model.info
    assert create("unet-ce", 2, 1).info.preparation is None
