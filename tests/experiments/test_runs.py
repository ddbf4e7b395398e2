"""Trained models on disk: their data and the folder of their results."""

import json
import shutil
from pathlib import Path

import pytest

from stochseg.errors import UserError
from stochseg.experiments.runs import default_results_dir, new_evaluation, open_run
from stochseg.models import create, save
from stochseg.training import train


@pytest.fixture
def trained(tiny_run, tmp_path):
    return train(tiny_run("steps=1"), tmp_path / "run", device="cpu")


@pytest.fixture
def saved(tmp_path):
    return save(create("unet-ce", 2, 1, base=4, multipliers=[1], blocks=1, attention=[]), tmp_path / "mine" / "model")


def test_results_go_into_the_run_or_below_runs(trained, saved):
    assert default_results_dir(trained) == trained
    assert default_results_dir(trained / "best") == Path("runs/run-best")
    assert default_results_dir(saved) == Path("runs/mine-model")
    assert default_results_dir(Path("lidc")) == Path("runs/lidc")


def test_a_run_knows_its_data_and_weights(trained, folder_root):
    run = open_run(trained, None, "val")
    assert run.data.info.name == run.source == "phantom"
    assert run.weights == trained / "best"
    other = open_run(trained, folder_root, "test", "last")
    assert other.data.info.name == "slices"
    expected = {"run": str(trained), "weights": "last", "split": "test", "data_path": str(folder_root.resolve())}
    assert {key: value for key, value in other.record().items() if key != "date"} == expected


@pytest.mark.parametrize(
    ("weights", "says"), [("first", "'first'; known: best, last"), ("best", r"no model at .*best")]
)
def test_missing_weights_are_named(trained, weights, says):
    shutil.rmtree(trained / "best")
    with pytest.raises(UserError, match=says):
        open_run(trained, None, "val", weights)
    assert open_run(trained, None, "val").weights == trained / "last"


def test_a_saved_model_has_no_choice_of_weights(saved, folder_root):
    with pytest.raises(UserError, match="--weights best.*run folder"):
        open_run(saved, folder_root, "val", "best")


def test_evaluations_are_kept_side_by_side_and_read_newest_first(trained):
    """Two of the same second, and one that an older version wrote."""
    for date, split in (
        ("2030-01-02 10:00:00", "test"),
        ("2030-01-01 10:00:00", "val"),
        ("2030-01-02 10:00:00", "test"),
    ):
        settings = {"date": date, "split": split, "weights": "best", "n": 4}
        new_evaluation(
            trained,
            settings,
            lambda folder, s=settings: (folder / "metrics.json").write_text(json.dumps({"settings": s})),
        )
    (trained / "evaluation").mkdir()
    (trained / "evaluation/metrics.json").write_text(json.dumps({"settings": {"samples": 4}}))
    assert [each["folder"] for each in open_run(trained, None, "val").facts().earlier] == [
        "evaluations/2030-01-02_100000-test-best-n4-2",
        "evaluations/2030-01-02_100000-test-best-n4",
        "evaluations/2030-01-01_100000-val-best-n4",
        "evaluation",
    ]


def test_a_model_without_a_run_needs_data(saved, folder_root):
    with pytest.raises(UserError, match="--data"):
        open_run(saved, None, "val")
    run = open_run(saved, folder_root, "test")
    assert (len(run.data), run.config, run.weights) == (1, None, saved)
