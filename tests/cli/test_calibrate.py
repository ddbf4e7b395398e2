"""`stochseg calibrate`: a run, a bundled model, and what they write."""

import json
import shutil

from stochseg.locks import locked
from stochseg.models import load


def test_a_run_is_calibrated_and_used_by_predict(run, trained, slice_png, tmp_path):
    own = tmp_path / "run"
    shutil.copytree(trained, own)
    code, out, _ = run("calibrate", own, "-n", 2, "--measure", "area", "--confidence", 0.5, "--device", "cpu")
    assert code == 0
    assert "4 patients, 4 cases" in " ".join(out.split())
    assert load(own).calibration.interval("area", 1, 0.5) is not None
    code, _, _ = run("predict", own, slice_png, "--out", tmp_path / "out", "-n", 2, "--allow-unusual-input")
    assert code == 0
    (entry,) = json.loads((tmp_path / "out/slice/result.json").read_text())["intervals"]
    assert entry["measure"] == "area"


def test_a_run_in_training_is_left_alone(run, trained):
    with locked(trained):
        code, _, err = run("calibrate", trained, "-n", 2, "--measure", "area", "--device", "cpu")
    assert code == 2
    assert "is in use by process" in err
    assert load(trained).calibration is None


def test_a_bundled_model_needs_out(run, folder_root):
    code, _, err = run("calibrate", "lidc", "--data", folder_root)
    assert code == 2
    assert "pass --out FOLDER" in err


def test_mistakes_are_explained(run, trained):
    for arguments, words in ((("--measure", "size"), "unknown measure"), (("--scaling", "x"), "unknown scaling")):
        code, _, err = run("calibrate", trained, "-n", 2, *arguments, "--device", "cpu")
        assert code == 2
        assert words in err
    code, _, err = run("calibrate", trained, "--confidence", 2, "--device", "cpu")
    assert code == 2
    assert "between 0 and 1" in err
