"""The command `stochseg predict`."""

import errno

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from stochseg.inference.stacks import read_picture
from stochseg.models import StochasticSegmenter, load, save
from tests.support.predictions import RNG, gray, read_result, small_model


@pytest.fixture
def saved(tmp_path):
    return save(small_model(), tmp_path / "model")


def test_exit_codes(run, saved, tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    command = ("predict", saved, tmp_path / "in", "--out", tmp_path / "out", "-n", 2, "--device", "cpu")
    code, out, _ = run(*command)
    assert code == 0
    assert f"in/a.png -> {tmp_path}/out/a" in out
    assert "1 done; results in" in out
    code, out, _ = run(*command)
    assert (code, "0 done, 1 already done" in out) == (0, True)
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
    assert (code, out) == (2, "")
    assert "no.png: no such file" in err
    assert not (tmp_path / "other").exists()


def test_unusual_inputs_are_skipped_unless_allowed(run, saved, tmp_path):
    Image.fromarray(RNG.random((12, 12)).astype(np.float32)).save(tmp_path / "unit.tif")
    Image.fromarray(gray()).save(tmp_path / "fine.png")
    command = ("predict", saved, tmp_path / "unit.tif", tmp_path / "fine.png", "--out", tmp_path / "out", "-n", 2)
    code, out, err = run(*command)
    assert (code, "1 done, 1 skipped" in out) == (1, True)
    assert "multiply it by 255" in err
    code, out, err = run(*command, "--allow-unusual-input")
    assert (code, "1 done, 1 already done" in out) == (0, True)
    assert "note: " in err


def test_a_full_disk_is_named(run, saved, tmp_path, monkeypatch):
    """The errors of the system do not say which file could not be written."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Image.fromarray(gray()).save(tmp_path / "a.png")
    monkeypatch.setattr("tifffile.imwrite", full)
    code, _, err = run("predict", saved, tmp_path / "a.png", "--out", tmp_path / "out", "-n", 2)
    assert code == 1
    assert f"{tmp_path}/out/a: No space left" in err


def test_sampling_options(run, saved, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    picture, model = read_picture(tmp_path / "a.png").values[0], load(saved)
    options = {"evaluations": 4, "sampler": "ancestral", "grid": "even", "noise": "latin"}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert run("predict", saved, tmp_path / "a.png", "--out", tmp_path / "out", "-n", 4, *flags)[0] == 0
    got = tifffile.imread(tmp_path / "out/a/samples.tif")
    assert (got == model.sample(picture, 4, **options).labels[0].numpy()).all()
    for name in options:
        others = {key: value for key, value in options.items() if key != name}
        assert (got != model.sample(picture, 4, **others).labels[0].numpy()).any(), name


def test_ctrl_c_says_how_to_resume(run, saved, tmp_path, monkeypatch):
    Image.fromarray(gray()).save(tmp_path / "a.png")

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(StochasticSegmenter, "sample", stop)
    code, _, err = run("predict", saved, tmp_path / "a.png", "--out", tmp_path / "out")
    assert code == 130
    assert "stopped" in err
    assert str(tmp_path / "out") in err


def test_slices_of_volumes_are_chosen_by_axis_or_plane(run, saved, tmp_path):
    nibabel.Nifti1Image(np.zeros((6, 7, 8), np.uint8), np.eye(4)).to_filename(tmp_path / "a.nii")
    for axis, expected in (("sagittal", 0), ("1", 1)):
        out = tmp_path / axis
        assert run("predict", saved, tmp_path / "a.nii", "--axis", axis, "--out", out, "-n", 1)[0] == 0
        assert read_result(out / "a")["image"]["slice_axis"] == expected
    for wrong in ("3", "diagonal"):
        code, _, err = run("predict", saved, tmp_path / "a.nii", "--axis", wrong, "--out", tmp_path / "x")
        assert code == 2
        assert "'axis'" in err
        assert not (tmp_path / "x").exists()
