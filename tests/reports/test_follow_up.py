"""Growth between two predictions, in Python and as a command."""

import json
import math
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.reports import compare_predictions
from tests.support.predictions import CLASSES, read_result, small_model


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Results of two volumes."""
    folder, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for name, voxel in (("before", 2.0), ("after", 1.5)):
        values = rng.integers(0, 256, (12, 10, 4)).astype(np.float32)
        nibabel.Nifti1Image(values, np.diag([1.0, 1.0, voxel, 1.0])).to_filename(folder / f"{name}.nii.gz")
    inputs = sorted(folder.iterdir(), reverse=True)
    done = predict(small_model(3, info=CLASSES), inputs, folder / "out", PredictOptions(n=4, slices="independent"))
    return [outcome.folder for outcome in done]


def volumes(folder: Path, label: int) -> list[float]:
    return read_result(folder)["classes"][label]["samples"]


def test_command_compares_all_pairs_of_samples(run, scans):
    pairs = [(a, b) for a in volumes(scans[0], 1) for b in volumes(scans[1], 1)]
    grown = sum(b > 1.1 * a for a, b in pairs) / len(pairs)
    code, out, said = run("growth", *scans, "--label", "nodule", "--threshold", 10, "--days", 90)
    assert code == 0, said
    assert f"P(growth > 10%) = {grown:.0%} (" in out
    assert "volume of nodule" in out
    assert "volume doubling time" in out
    assert "independently" in said
    found, note = compare_predictions(*scans, days=90)
    totals = [np.add(volumes(folder, 1), volumes(folder, 2)) for folder in scans]
    assert found.before.values == pytest.approx(totals[0])
    assert found.absolute.mean == pytest.approx(totals[1].mean() - totals[0].mean())
    assert "wider" in note


def test_a_threshold_below_one_percent_is_shown(run, scans):
    code, out, _ = run("growth", *scans, "--threshold", 0.25)
    assert code == 0
    assert "P(growth > 0.25%)" in out


def test_scans_drawn_as_two_raters_are_refused(run, scans, tmp_path):
    shutil.copytree(scans[1], tmp_path / "ana")
    file = tmp_path / "ana/result.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "options": {**record["options"], "rater": "ana"}}))
    code, _, said = run("growth", scans[0], tmp_path / "ana")
    assert code == 2
    assert "got any rater and ana" in " ".join(said.split())


def test_samples_of_whole_volumes_need_no_note(scans, tmp_path):
    for folder in scans:
        shutil.copytree(folder, tmp_path / folder.name)
        file = tmp_path / folder.name / "result.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "coupling": "joint"}))
    assert compare_predictions(*(tmp_path / folder.name for folder in scans))[1] == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--label", "cyst"], "unknown class 'cyst'; known: nodule, vessel"),
        (["--days", "-1"], "days"),
        (["--threshold", "-5"], "--threshold: expected percent of at least 0, such as 25, got -5"),
        (["--threshold", "nan"], "--threshold"),
    ],
)
def test_mistakes_exit_with_2(run, scans, arguments, says):
    code, out, said = run("growth", *scans, *arguments)
    assert (code, out) == (2, "")
    assert says in said


def test_a_scan_with_lesions_is_its_only_lesion(scans, tmp_path):
    """`predict --at` writes a folder of lesions: result.json of the scan has no sizes."""
    for name, ids in (("one", "a"), ("two", "ab")):
        for id in ids:
            shutil.copytree(scans[0], tmp_path / name / "lesions" / id)
        record = read_result(scans[0])
        del record["unit"], record["classes"]
        (tmp_path / name / "result.json").write_text(json.dumps(record))
    assert compare_predictions(tmp_path / "one", scans[1])[0].before.values.tolist() == pytest.approx(
        np.add(volumes(scans[0], 1), volumes(scans[0], 2))
    )
    with pytest.raises(UserError, match=r"one lesion, got 2; pass one, such as .*lesions.a"):
        compare_predictions(tmp_path / "two", scans[1])


def test_missing_results_and_different_units_are_refused(run, scans, tmp_path):
    code, _, said = run("growth", scans[0], tmp_path)
    assert code == 2
    assert "result.json" in said
    shutil.copytree(scans[0], tmp_path / "flat")
    file = tmp_path / "flat/result.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "unit": "pixels", "image": {**record["image"], "slices": 1}}))
    with pytest.raises(UserError, match="same unit"):
        compare_predictions(scans[0], tmp_path / "flat")
    assert math.isfinite(compare_predictions(scans[0], scans[0])[0].absolute.mean)
