"""Comparison of methods: equal terms for all, finished rows are kept, failed methods have a row."""

import csv
import json
import math

import pytest
import torch

from stochseg.errors import UserError
from stochseg.experiments import compare as module
from stochseg.experiments.compare import compare, parse_budget
from stochseg.experiments.comparison import markdown_table
from stochseg.locks import locked
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import method_bars, write_figure
from stochseg.training.config import write_config
from tests.support.workers import LosingPool


@pytest.fixture
def methods(tiny_run, tmp_path):
    """Two config files: a model that trains, and one whose initial weights are missing."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    write_config(tiny_run(), good)
    write_config(tiny_run("start_from=absent"), bad)
    return [str(good), str(bad)]


def run(methods, out, budget="3", *, evaluations=None, **arguments):
    options = SamplingOptions(n=2, evaluations=evaluations)
    return compare(methods, None, budget, out, options=options, limit=2, device="cpu", **arguments)


def test_a_failed_method_has_a_row_with_its_problem(methods, tmp_path):
    out = tmp_path / "out"
    good, bad, *references = run(methods, out)
    assert good["train_steps"] == 3
    assert good["problem"] == ""
    assert 0 <= good["hm_iou"] <= 1
    assert good["parameters"] > 0
    assert good["evaluations"] == 2
    assert "no model at absent" in bad["problem"]
    assert math.isnan(bad["ged"])
    with (out / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["method"] == methods[1], "failed methods come last"
    assert rows[-1]["ged"] == ""
    by_name = {row["method"]: row for row in rows}
    assert float(by_name[methods[0]]["ged"]) == pytest.approx(good["ged"], abs=1e-4)
    assert [row["method"] for row in references] == ["blind", "empty", "majority", "pixels", "raters"]
    assert {by_name[row["method"]]["note"] for row in references} == {"reference"}
    assert (good["note"] == "worse than blind") == (good["ged"] > references[0]["ged"])
    text = (out / "comparison.md").read_text()
    assert "GED_2" in text
    assert "no model at absent" in text
    assert "The same for all: budget 3, split val, samples 2, images 2, stochseg" in text
    assert (out / "comparison.png").stat().st_size > 1000
    assert (out / "samples-1.png").stat().st_size > 1000


def test_finished_rows_are_kept_and_failed_ones_are_repeated(methods, tmp_path, monkeypatch):
    first = run(methods, tmp_path / "out")
    trained = []
    again = module.train
    monkeypatch.setattr(
        module, "train", lambda config, *rest, **options: trained.append(config) or again(config, *rest, **options)
    )
    second = run(methods, tmp_path / "out")
    assert second[0] == first[0]
    assert [config.start_from for config in trained] == ["absent"]


def test_references_are_scored_once_per_folder_and_terms(methods, tmp_path, monkeypatch):
    scored, again = [], module.score_references
    monkeypatch.setattr(module, "score_references", lambda *rest: scored.append(rest[1:]) or again(*rest))
    first = run(methods[:1], tmp_path / "out")
    second = run([*methods[:1], f"{methods[0]} lr=1e-3"], tmp_path / "out")
    assert scored == [([2], 2)]
    assert second[2:] == first[1:]


@pytest.mark.xdist_group("dask")
def test_workers_make_the_same_rows(methods, tmp_path, pool):
    timing = {"train_minutes": 0, "seconds_per_sample": 0}
    torch.set_num_threads(1)  # as many as in a worker
    alone, together = (
        run([*methods, f"{methods[0]} lr=1e-3"], tmp_path / name, pool=each)
        for name, each in (("alone", None), ("together", pool))
    )
    assert [row["method"] for row in together] == [row["method"] for row in alone]
    for a, b in zip(alone, together, strict=True):
        assert json.dumps(a | timing) == json.dumps(b | timing)
    assert (tmp_path / "together/samples-1.png").exists()


def test_a_method_that_kills_its_workers_is_a_failed_one(methods, tmp_path):
    row, *_ = run(methods[:1], tmp_path / "out", pool=LosingPool("good.yaml"))
    assert "its worker died 2 times" in row["problem"]


def test_a_second_comparison_in_the_same_folder_is_refused(methods, tmp_path):
    with locked(tmp_path / "out"), pytest.raises(UserError, match="in use by process"):
        run(methods, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_evaluations_cap_the_methods_that_make_more(methods, tmp_path):
    assert run(methods[:1], tmp_path / "fewer", evaluations=1)[0]["evaluations"] == 1
    assert run(methods[:1], tmp_path / "own", evaluations=5)[0]["evaluations"] == 2
    whole = f"{methods[0]} model.options.evaluations=null"
    assert run([whole], tmp_path / "all", evaluations=9)[0]["evaluations"] == 8, "the maximum is not reached"


def test_mistakes_are_found_before_training(methods, tiny_run, folder_root, tmp_path):
    larger, absent = tmp_path / "larger.yaml", tmp_path / "absent.yaml"
    write_config(tiny_run("data.options.size=16"), larger)
    write_config(tiny_run("data={name: store, options: {path: absent.h5}}"), absent)
    for which, options, message in (
        (methods[:1], {"split": "holdout"}, "unknown split of phantom 'holdout'"),
        (methods[:1], {"device": "abacus"}, "abacus"),
        ([methods[0], str(larger)], {}, "cannot be compared.*--data"),
        ([str(absent)], {}, "absent.h5"),
        (methods[:1], {"options": SamplingOptions(n=1)}, "at least 2 samples per image, got 1"),
        (methods[:1], {"options": SamplingOptions(sampler="ddim")}, "model.options.sampler"),
        (methods[:1], {"limit": 0}, "limit must be at least 1, got 0"),
        ([methods[0], f"{methods[0]} data.train.count=5"], {"split": "train"}, "cannot be compared"),
    ):
        with pytest.raises(UserError, match=message):
            compare(which, None, "3", tmp_path / "out", **{"device": "cpu", **options})
    splits = folder_root / "splits.json"
    splits.write_text(json.dumps({**json.loads(splits.read_text()), "test": []}))
    with pytest.raises(UserError, match="the split 'test' of its data is empty"):
        compare(["ssn"], folder_root, "3", tmp_path / "out", split="test", device="cpu")
    assert not (tmp_path / "out").exists()


def test_the_entropy_grid_is_measured_on_validation_images(methods, tmp_path, monkeypatch):
    opened, open_split = [], module.open_split
    monkeypatch.setattr(module, "open_split", lambda config, split: opened.append(split) or open_split(config, split))
    row, *_ = run([f"{methods[0]} model.options.grid=entropy"], tmp_path / "out", split="test")
    assert row["problem"] == ""
    checked, scored, references, drawn = opened[:3], opened[3:5], opened[5:6], opened[6:]
    assert checked == ["train", "val", "test"]
    assert scored == ["val", "test"]
    assert references == ["test"]
    assert drawn == ["test", "val"]


def test_rows_of_other_terms_are_refused(methods, tmp_path):
    run(methods[:1], tmp_path / "out")
    with pytest.raises(UserError, match=r"another budget \(3 instead of 4\)"):
        run([f"{methods[0]} lr=1e-3", methods[0]], tmp_path / "out", budget="4")
    row = next((tmp_path / "out").glob("*/row.json"))
    row.write_text(row.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(UserError, match=r"another device \(cuda instead of cpu\)"):
        run(methods[:1], tmp_path / "out")
    row.write_text(row.read_text().replace('"device": "cuda"', '"device": "cpu", "seed": 1'))
    with pytest.raises(UserError, match=r"another seed \(1 instead of None\)"):
        run(methods[:1], tmp_path / "out")
    assert len([*(tmp_path / "out").glob("*/run")]) == 1, "nothing was trained before the error"


def test_the_last_weights_are_scored(methods, tmp_path, monkeypatch):
    """No method may choose its weights by the validation score that is reported."""
    train = module.train

    def train_and_spoil(config, out, **options):
        train(config, out, **options)
        (out / "best/config.json").write_text("{}")

    monkeypatch.setattr(module, "train", train_and_spoil)
    row, *_ = run([f"{methods[0]} validation.every=1"], tmp_path / "out")
    assert row["problem"] == ""
    log = [json.loads(line) for line in next((tmp_path / "out").rglob("log.jsonl")).read_text().splitlines()]
    assert [line["step"] for line in log if "val/ged" in line] == [3]


def test_a_time_budget_ends_the_training_and_decays_the_learning_rate(methods, tmp_path):
    row, *_ = run(methods[:1], tmp_path / "out", budget="1s")
    assert row["train_steps"] > 3
    assert 1 / 60 <= row["train_minutes"] < 1
    log = [json.loads(line) for line in next((tmp_path / "out").rglob("log.jsonl")).read_text().splitlines()]
    rates = [line["train/lr"] for line in log if "train/lr" in line]
    assert rates[-1] < 0.2 * rates[0]


@pytest.mark.parametrize(
    ("text", "minutes", "steps"), [("20m", 20, None), ("90s", 1.5, None), ("1.5h", 90, None), ("200", None, 200)]
)
def test_a_budget_is_a_time_or_a_number_of_steps(text, minutes, steps):
    parsed = parse_budget(text)
    assert parsed["minutes"] == (None if minutes is None else pytest.approx(minutes))
    if steps is not None:
        assert parsed["steps"] == steps


@pytest.mark.parametrize("text", ["", "m", "0", "-3m", "20 minutes", "2.5"])
def test_a_wrong_budget_is_refused(text):
    with pytest.raises(UserError, match="budget"):
        parse_budget(text)


def test_a_method_with_other_settings_is_another_method(methods, tmp_path):
    spaced = tmp_path / "a = b.yaml"
    spaced.write_text((tmp_path / "good.yaml").read_text())
    good, slow, other, *_ = run([methods[0], f"{methods[0]} lr=1e-9 batch_size=1", str(spaced)], tmp_path / "out")
    assert good["ged"] == other["ged"] != slow["ged"]
    settings = [json.loads(file.read_text()) for file in sorted((tmp_path / "out").glob("*/row.json"))]
    assert len(settings) == 3
    with pytest.raises(UserError, match="unknown key 'batchsize'"):
        run([f"{methods[0]} batchsize=1"], tmp_path / "none")


def test_a_method_named_twice_is_refused(methods, tmp_path):
    with pytest.raises(UserError, match="once, got"):
        run([methods[0], methods[0]], tmp_path / "out")


def test_a_markdown_table_has_no_empty_columns_and_no_bars_inside_cells():
    rows = [{"method": "ssn", "ged": "0.31", "miou": ""}, {"method": "a|b", "ged": "", "miou": ""}]
    text = markdown_table(rows, {"method": "method", "ged": "GED", "miou": "mIoU"})
    assert text.splitlines() == ["| method | GED |", "| --- | --- |", "| ssn | 0.31 |", "| a/b |  |"]


@pytest.mark.filterwarnings("error")  # of matplotlib, if the names leave no room for the bars
def test_long_names_leave_room_for_the_bars(tmp_path):
    name = "ccdm " + " ".join(f"model.options.setting_{i}=0.001" for i in range(12))
    rows = [{"method": method, "ged": 0.4, "hm_iou": 0.5, "seconds_per_sample": 0.1} for method in (name, "ssn")]
    assert write_figure(method_bars(rows, n=16), tmp_path / "bars.png").stat().st_size > 0
