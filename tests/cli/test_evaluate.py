"""`stochseg evaluate`: the files it writes and its errors."""

import csv
import json

import pytest
import yaml
from PIL import Image

from stochseg.models import save
from stochseg.training import train
from stochseg.types import VOID, DatasetInfo
from tests.support.models import lively
from tests.support.pages import Page
from tests.support.runs import evaluations


def test_scores_pictures_and_the_curve_are_written(run, trained):
    code, out, _ = run("evaluate", trained, "-n", 16, "--limit", 2, "--curve", "1,2", "--device", "cpu")
    assert code == 0
    assert "GED, n = 16" in out
    folder = evaluations(trained)[-1]
    assert str(folder) in out
    scores = json.loads((folder / "metrics.json").read_text())
    assert scores["settings"]["images"] == 2
    for file in ("samples.png", "curve.png"):
        with Image.open(folder / file) as picture:
            assert picture.width > 300
    with (folder / "curve.csv").open() as file:
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
        (("RUN", "--weights", "first"), ("'first'; known: best, last",)),
        (("RUN", "--out", "before"), ("before", "already contains an evaluation")),
        (("RUN", "--out", "taken"), ("taken", "cannot be written")),
    ],
)
def test_mistakes_are_found_before_sampling(run, trained, tmp_path, monkeypatch, arguments, says):
    monkeypatch.setattr("stochseg.models.StochasticSegmenter._sample", lambda *_: pytest.fail("sampling started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("precious")
    (tmp_path / "before").mkdir()
    (tmp_path / "before/metrics.json").write_text("{}")
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
    (folder,) = evaluations(tmp_path / "runs/run-last")
    assert json.loads((folder / "metrics.json").read_text())["settings"]["weights"] == "last"
    assert (tmp_path / "runs/run-last/report.html").exists()


def test_a_model_with_the_label_void_is_scored_on_the_classes_of_the_data(run, folder_root, tmp_path):
    facts = yaml.safe_load((folder_root / "dataset.yaml").read_text()) | {"class_names": ["background", "nodule"]}
    (folder_root / "dataset.yaml").write_text(yaml.safe_dump(facts))
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "nodule", VOID))
    save(lively("ccdm-fast", 3, info=info, evaluations=2), tmp_path / "model")
    arguments = ("--data", folder_root, "-n", 2, "--out", tmp_path / "scores")
    assert run("evaluate", tmp_path / "model", *arguments)[0] == 0
    Page(tmp_path / "scores/index.html").check()
    assert "miou" in json.loads((tmp_path / "scores/metrics.json").read_text())


def test_earlier_evaluations_are_kept_and_the_report_never_mixes_splits(run, trained):
    before = evaluations(trained)
    for split, n in (("val", 3), ("test", 4)):
        assert run("evaluate", trained, "-n", n, "--split", split, "--limit", 1, "--weights", "last")[0] == 0
    new = {each.name.partition("-last-")[2]: each for each in set(evaluations(trained)) - set(before)}
    assert set(before) < set(evaluations(trained))
    assert {n: "-val-last" in each.name for n, each in new.items()} == {"n3": True, "n4": False}
    settings = json.loads((new["n4"] / "metrics.json").read_text())["settings"]
    recorded = {key: settings[key] for key in ("split", "weights", "data_path", "n", "seed", "sampler", "evaluations")}
    assert recorded == {
        "split": "test",
        "weights": "last",
        "data_path": "phantom",
        "n": 4,
        "seed": 0,
        "sampler": "ancestral",
        "evaluations": 2,
    }
    assert len(settings["data_sha256"]) == 64
    with (new["n4"] / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert {key: row[key] for key in recorded} == {key: str(value) for key, value in recorded.items()}
    assert "split test, last weights" in Page(new["n4"] / "index.html").text
    page = trained / "both.html"
    arguments = ("-n", 2, "--limit", 1, "--split", "val", "--curve", "none", "--out", page)
    assert run("report", trained, *arguments)[0] == 0
    text = Page(page).text
    head = text[text.index("metric value") : text.index("better meaning")]
    assert "n = 3, last" in head
    assert "n = 4" not in head
    assert all(each.name in text for each in evaluations(trained)), "all are listed"


def test_several_seeds_and_one_sample(run, trained, tmp_path):
    code, out, messages = run("evaluate", trained, "-n", 1, "--seeds", 2, "--limit", 1, "--out", tmp_path / "a")
    assert code == 0
    assert "need two" in messages
    assert "1 sample each" in " ".join(out.split())
    assert "±" in out
    assert "diversity" not in out
    scores = json.loads((tmp_path / "a/metrics.json").read_text())
    assert list(scores["seeds"]) == ["0", "1"]
    assert "±" in Page(tmp_path / "a/index.html").check().text


def test_several_classes_and_one_annotation(run, tiny_run, tmp_path):
    """The defaults of the paper for such data: ten samples, fused by both rules; scores of each class."""
    out = tmp_path / "run"
    train(tiny_run("steps=1", "data.options={size: 8, raters: 1, variant: multiclass}"), out, device="cpu")
    code, shown, _ = run("evaluate", out, "--limit", 2)
    assert code == 0
    (folder,) = evaluations(out)
    scores = json.loads((folder / "metrics.json").read_text())
    assert scores["settings"]["n"] == 10
    for n in (1, 5, 10):
        assert f"mIoU, fused by vote, n = {n}" in shown
        assert {f"miou_mean_{n}", f"miou_vote_{n}"} <= scores.keys()
    assert "vessel" in shown
    page = Page(folder / "index.html").check()
    assert "Scores per class" in page.words
    assert f"{scores['ged_10/vessel']:.4f}" in page.text
    with (folder / "metrics.csv").open() as file:
        assert float(next(csv.DictReader(file))["ged_10/vessel"]) == scores["ged_10/vessel"]
