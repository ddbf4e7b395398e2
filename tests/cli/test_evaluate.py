"""`stochseg evaluate`: the files it writes and its errors."""

import csv
import json

import pytest
from PIL import Image


def test_scores_pictures_and_the_curve_are_written(run, trained):
    code, out, _ = run("evaluate", trained, "-n", 16, "--limit", 2, "--curve", "1,2", "--device", "cpu")
    assert code == 0
    assert "GED, n = 16" in out
    scores = json.loads((trained / "evaluation/metrics.json").read_text())
    assert scores["settings"]["images"] == 2
    for file in ("samples.png", "curve.png"):
        with Image.open(trained / "evaluation" / file) as picture:
            assert picture.width > 300
    with (trained / "evaluation/curve.csv").open() as file:
        assert [row["evaluations"] for row in csv.DictReader(file)] == ["1", "2"]


def test_latin_samples_are_scored_all_together(run, trained, tmp_path):
    arguments = ("-n", 20, "--noise", "latin", "--limit", 2, "--out", tmp_path)
    code, out, _ = run("evaluate", trained, *arguments)
    assert code == 0
    assert "GED, n = 20" in out
    assert "GED, n = 16" not in out
    assert "2 network evaluations per sample" in (tmp_path / "index.html").read_text()
    assert not (tmp_path / "curve.png").exists()


def test_the_page_counts_the_evaluations_of_the_corrector(run, trained, tmp_path):
    arguments = ("--sampler", "corrector", "-n", 2, "--limit", 1, "--out", tmp_path)
    assert run("evaluate", trained, *arguments)[0] == 0
    assert "3 network evaluations per sample" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lidc",), ("lidc", "--data")),
        (("RUN", "--split", "holdout"), ("unknown split", "'holdout'; known: test, train, val")),
        (("RUN", "--curve", "1,9"), ("evaluations must be between 1 and T=8, got 9",)),
        (("RUN", "--curve", "1,x"), ("--curve", "'1,x'")),
        (("RUN", "-n", "1"), ("at least 2 samples", "got 1")),
        (("RUN", "--out", "taken"), ("taken", "cannot be written")),
    ],
)
def test_mistakes_are_found_before_sampling(run, trained, tmp_path, monkeypatch, arguments, says):
    monkeypatch.setattr("stochseg.models.StochasticSegmenter.sample", lambda *_, **__: pytest.fail("sampling started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("precious")
    code, _, messages = run("evaluate", *(trained if word == "RUN" else word for word in arguments))
    assert code == 2
    assert all(part in messages for part in says), messages
    assert (tmp_path / "taken").read_text() == "precious"


def test_results_on_a_checkpoint_are_written_elsewhere(run, trained, folder_root, tmp_path, monkeypatch):
    """A checkpoint with other files in it could not be replaced by the next one."""
    monkeypatch.chdir(tmp_path)
    before = sorted(file.name for file in (trained / "last").iterdir())
    arguments = ("--data", folder_root, "-n", 2, "--device", "cpu")
    assert run("evaluate", trained / "last", *arguments)[0] == 0
    assert run("report", trained / "last", *arguments)[0] == 0
    assert sorted(file.name for file in (trained / "last").iterdir()) == before
    assert (tmp_path / "runs/run-last/evaluation/metrics.json").exists()
    assert (tmp_path / "runs/run-last/report.html").exists()
