"""Evaluation with several sampling seeds: values of each, mean and deviation in tables and files."""

import csv
import json

import numpy as np
import pytest

from stochseg.data import Phantoms
from stochseg.evaluation import class_table, evaluate, evaluate_seeds, table, write_results
from stochseg.models.sampling import SamplingOptions
from tests.support.models import lively

DATA = Phantoms("val", size=16, variant="multiclass", count=2)


@pytest.fixture(scope="module")
def model():
    return lively("ccdm-fast", DATA.info.num_classes, info=DATA.info, evaluations=2, noise="independent")


@pytest.fixture(scope="module")
def result(model):
    return evaluate_seeds(model, DATA, 3, options=SamplingOptions(n=4, seed=5))


def test_each_seed_is_an_evaluation_of_its_own(model, result):
    assert list(result.seeds) == [5, 6, 7]
    alone = evaluate(model, DATA, options=SamplingOptions(n=4, seed=6)).metrics
    for key in ("ged_4", "miou", "iou/vessel"):
        assert result.seeds[6][key] == alone[key]
        values = [result.seeds[seed][key] for seed in (5, 6, 7)]
        assert result.metrics[key] == pytest.approx(np.mean(values))
        assert result.deviation[key] == pytest.approx(np.std(values, ddof=1))
    assert result.deviation["ged_4"] > 0
    assert [row["seed"] for row in result.images] == [5, 5, 6, 6, 7, 7]


def test_one_seed_is_a_plain_evaluation(model):
    one = evaluate_seeds(model, DATA, 1, options=SamplingOptions(n=4))
    assert not one.seeds
    assert not one.deviation
    assert "±" not in one.text("ged_4")


def test_progress_counts_the_images_of_all_seeds(model):
    seen = []
    options = SamplingOptions(n=2)
    evaluate_seeds(model, DATA, 2, options=options, progress=lambda *now: seen.append(now))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_tables_show_mean_and_deviation(result):
    expected = f"{result.metrics['ged_4']:.4f} ± {result.deviation['ged_4']:.4f}"
    assert expected in [cell for column in table(result).columns for cell in column.cells]
    (names, geds, *_) = (list(column.cells) for column in class_table(result).columns)
    assert names == list(DATA.info.names)
    key = f"ged_4/{names[1]}"
    assert geds[:2] == ["", f"{result.metrics[key]:.4f} ± {result.deviation[key]:.4f}"]


def test_files_keep_the_values_of_each_seed(result, tmp_path):
    write_results(result, tmp_path)
    scores = json.loads((tmp_path / "metrics.json").read_text())
    assert scores["ged_4"] == result.metrics["ged_4"]
    assert scores["deviation"]["ged_4"] == result.deviation["ged_4"]
    assert {seed: found["ged_4"] for seed, found in scores["seeds"].items()} == {
        str(seed): found["ged_4"] for seed, found in result.seeds.items()
    }
    with (tmp_path / "metrics.csv").open() as file:
        rows = {row["seed"]: float(row["ged_4"]) for row in csv.DictReader(file)}
    assert list(rows) == ["5", "6", "7", "mean", "deviation"]
    assert rows["mean"] == result.metrics["ged_4"]
