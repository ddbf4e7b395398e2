"""Trained models on disk: their data and the folder of their results."""

from pathlib import Path

import pytest

from stochseg.errors import UserError
from stochseg.experiments.runs import default_results_dir, open_run
from stochseg.models import create, save
from stochseg.training import train


@pytest.fixture
def trained(tiny_run, tmp_path):
    return train(tiny_run("steps=1", 'published={"ged_16": 0.2}'), tmp_path / "run", device="cpu")


@pytest.fixture
def saved(tmp_path):
    return save(create("unet-ce", 2, 1, base=4, multipliers=[1], blocks=1, attention=[]), tmp_path / "mine" / "model")


def test_results_go_into_the_run_or_below_runs(trained, saved):
    assert default_results_dir(trained) == trained
    assert default_results_dir(trained / "best") == Path("runs/run-best")
    assert default_results_dir(saved) == Path("runs/mine-model")
    assert default_results_dir(Path("lidc")) == Path("runs/lidc")


def test_a_run_knows_its_data_and_published_scores(trained, folder_root):
    run = open_run(trained, None, "val")
    assert run.data.info.name == "phantom"
    assert run.published == run.facts().published == {"ged_16": 0.2}
    assert open_run(trained, folder_root, "val").data.info.name == "slices"


def test_a_model_without_a_run_needs_data(saved, folder_root):
    with pytest.raises(UserError, match="--data"):
        open_run(saved, None, "val")
    run = open_run(saved, folder_root, "test")
    assert (len(run.data), run.config, run.published) == (1, None, {})
