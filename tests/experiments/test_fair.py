"""The protocol `fair`: patients kept back, pilots, curves from one training, intervals by patient, resuming."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from stochseg.errors import UserError
from stochseg.experiments import fair as module
from stochseg.experiments import fair_table
from stochseg.experiments.compare import folder_of, method_config
from stochseg.experiments.fair import FairTerms, compare_fair, parse_budgets
from stochseg.experiments.fair_table import difference
from stochseg.experiments.method_sets import ABLATIONS, FAST, HEADS, PUBLISHED, fair_methods
from stochseg.models import MODELS, create, load
from stochseg.training import TrainingDiverged, open_split
from stochseg.training.config import write_config
from stochseg.training.log import LOG_FILE, read_log

BUDGETS = (0.002, 0.004)


@pytest.fixture
def method(tiny_run, tmp_path):
    file = tmp_path / "tiny.yaml"
    write_config(tiny_run("data.train={count: 40}", "save_every=1"), file)
    return str(file)


def test_stages_are_kept_and_the_table_has_curve_intervals_and_references(method, tmp_path, monkeypatch):
    terms, out = FairTerms(None, BUDGETS, images=3, images_own=2), tmp_path / "out"
    rows = compare_fair([method], terms, out)
    own = [row for row in rows if row["method"] == method]
    assert [(row["minutes"], row["sampling"]) for row in own] == [
        (BUDGETS[0], "10"),
        *((BUDGETS[1], sampling) for sampling in ("10", "50", "latin", "own")),
    ]
    references = rows[len(own) :]
    assert [row["method"] for row in references] == ["blind", "empty", "majority", "pixels", "raters"]
    for row in own:
        assert row["image_count"] == (2 if row["sampling"] == "own" else 3)
        if row["image_count"] == 3:
            assert row["blind_difference"] == pytest.approx(row["ged_16"] - references[0]["ged_16"])
        low, high = row["interval"]
        assert low <= row["ged_16"] <= high
        assert row["difference"] == 0
    folder = next(path for path in out.iterdir() if path.is_dir())
    pilots = [json.loads(file.read_text()) for file in sorted(folder.glob("pilot-*.json"))]
    assert len(pilots) == 3
    best = min(pilots, key=lambda pilot: pilot["ged_16"])["lr"]
    assert {row["lr"] for row in own} == {best}
    assert {row["pilots"] for row in own} == {"3 of 3"}
    reached = {run.name: read_log(run / LOG_FILE) for run in folder.glob("pilot-*/")}
    (continued,) = (rows for rows in reached.values() if rows[-1]["seconds"] >= 60 * BUDGETS[1])
    assert {row["train/lr"] for row in continued[: len(continued) // 2] if "train/lr" in row} == {best}
    assert own[-1]["steps"] == continued[-1]["step"]
    assert own[0]["steps"] < own[-1]["steps"]
    with (out / "fair.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert (out / "fair.png").stat().st_size > 1000

    def untouched(*_, **__):
        raise AssertionError("a finished stage was repeated")

    for trained in [path for path in folder.iterdir() if path.is_dir()]:  # results without weights are enough
        shutil.rmtree(trained)
    monkeypatch.setattr(module, "train", untouched)
    monkeypatch.setattr(module, "evaluate", untouched)
    monkeypatch.setattr(fair_table, "score_references_by_image", untouched)
    assert json.dumps(compare_fair([method], terms, out)) == json.dumps(rows)
    with pytest.raises(UserError, match="another images"):
        compare_fair([method], FairTerms(None, BUDGETS, images=2), out)


def test_a_method_that_fails_has_a_row_and_the_others_a_result(method, tmp_path, monkeypatch):
    train = module.train

    def fail(config, *rest, **options):
        if config.batch_size == 3:
            raise RuntimeError("no memory")
        return train(config, *rest, **options)

    monkeypatch.setattr(module, "train", fail)
    rows = compare_fair(
        [f"{method} batch_size=3", method], FairTerms(None, BUDGETS[:1], images=2, images_own=1), tmp_path / "out"
    )
    assert rows[0]["note"] == "failed: RuntimeError: no memory"
    assert "Traceback" in (tmp_path / "out" / folder_of(f"{method} batch_size=3") / "problem.txt").read_text()
    assert rows[1]["ged_16"] >= 0


def test_the_rate_is_constant_up_to_a_short_decay_before_the_last_budget(tiny_run):
    terms = FairTerms(None, (10, 60))
    first, last = (
        module._training(tiny_run("decay=tail", "steps=1000000"), 1e-3, 0, budget, terms) for budget in terms.budgets
    )
    assert [first.lr_factor(5, 60 * minutes) for minutes in (0, 5, 9.99)] == [1, 1, 1]
    assert [last.lr_factor(5, 60 * minutes) for minutes in (10, 30, 53.9)] == [1, 1, 1]
    assert last.lr_factor(5, 60 * 57) == pytest.approx((1 + last.final_lr / last.lr) / 2)


def test_a_pilot_that_diverges_loses_and_other_errors_are_not_taken_for_it(method, tmp_path, monkeypatch):
    terms, train = FairTerms(None, BUDGETS[:1], images=2, images_own=1), module.train

    def diverge(config, *rest, **options):
        if config.lr > 1e-2:
            raise TrainingDiverged("loss nan")
        if broken and config.lr < 1e-2:
            raise UserError("the disk is full")
        return train(config, *rest, **options)

    monkeypatch.setattr(module, "train", diverge)
    broken = True
    rows = compare_fair([method], terms, tmp_path)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert all(row["note"].endswith("failed: UserError: the disk is full") for row in rows if row["method"] == method)
    assert not (folder / "pilot-0.33.json").exists()
    broken = False
    rows = compare_fair([method], terms, tmp_path)
    assert json.loads((folder / "pilot-3.json").read_text())["ged_16"] == np.inf
    assert {row["pilots"] for row in rows if row["method"] == method} == {"3 of 3"}
    assert all("failed" not in row["note"] for row in rows)


def test_the_patients_of_tune_are_not_trained_on(tiny_run):
    config = tiny_run("data.train={count: 200}", "data.tune=0.1")
    train, tune, all_ = (
        {open_split(each, split)[i].id for i in range(len(open_split(each, split)))}
        for each, split in ((config, "train"), (config, "tune"), (tiny_run("data.train={count: 200}"), "train"))
    )
    assert train | tune == all_
    assert not train & tune
    assert 5 <= len(tune) <= 40
    with pytest.raises(UserError, match="no patient is left"):
        open_split(tiny_run(), "tune")


def test_intervals_are_those_of_patients_drawn_again():
    """Three patients with one, one and two images: all 27 draws, against the quantiles of many random ones."""
    own = {"a": 0.1, "b": 0.5, "c": 0.4, "d": 0.8}
    first = {"a": 0.2, "b": 0.5, "c": 0.1, "d": 0.9}
    patients = {"a": "p", "b": "q", "c": "r", "d": "r"}

    def exact(values):
        images = {"p": [values["a"]], "q": [values["b"]], "r": [values["c"], values["d"]]}
        draws = itertools.product(images, repeat=3)
        means = [np.mean([*itertools.chain.from_iterable(images[p] for p in draw)]) for draw in draws]
        return np.quantile(means, [0.025, 0.975], method="inverted_cdf")

    mean, interval = difference(own, dict.fromkeys(own, 0.0), patients)
    assert mean == pytest.approx(np.mean([*own.values()]))
    np.testing.assert_allclose(interval, exact(own), atol=0.03)
    mean, interval = difference(own, first, patients)
    assert mean == pytest.approx(np.mean([own[k] - first[k] for k in own]))
    np.testing.assert_allclose(interval, exact({k: own[k] - first[k] for k in own}), atol=0.03)
    assert difference(own, {"b": 0.4, "e": 9.0}, patients)[0] == pytest.approx(0.1)  # images that both have
    assert difference(own, {}, patients) == (None, None)


@pytest.mark.parametrize(
    ("interval", "note"),
    [
        (None, ""),
        ((-0.2, -0.1), ""),
        ((-0.2, 0.1), "not clearly better than blind"),
        ((0.1, 0.2), "worse than blind"),
    ],
)
def test_a_row_says_whether_it_beats_blind(interval, note):
    assert fair_table._note(interval) == note


def test_all_methods_take_a_stage_before_the_next_begins(method, tmp_path):
    terms, console = (
        FairTerms(None, BUDGETS[:1], images=2, images_own=1),
        Console(record=True, width=500, file=io.StringIO()),
    )
    compare_fair([method, f"{method} lr=1e-4"], terms, tmp_path, console=console)
    said = [line.rsplit(", ", 1)[1].removesuffix(": finished") for line in console.export_text().splitlines()]
    expected = [[stage.name for stage in module.stages(terms, lr)] for lr in (1e-2, 1e-4)]
    del expected[0][3], expected[1][3]  # the pilots have reached the first budget
    assert said == [name for both in zip(*expected, strict=True) for name in both]


def test_the_second_pilot_is_the_one_closer_to_a_usual_rate():
    first, second = ([stage.name for stage in module.stages(FairTerms(None), lr)[:3]] for lr in (1e-3, 1e-4))
    assert first == ["pilot at 1 × lr", "pilot at 0.33 × lr", "pilot at 3 × lr"]
    assert second == ["pilot at 1 × lr", "pilot at 3 × lr", "pilot at 0.33 × lr"]


def test_scores_of_the_first_budget_are_those_of_the_best_pilot_so_far(method, tmp_path, monkeypatch):
    ged, scored, evaluate = iter([0.5, 0.3, 0.4]), [], module._evaluate

    def choose(model, data, sampling, limit):
        if limit == module.TUNE_IMAGES:
            return SimpleNamespace(metrics={"ged_16": next(ged)})
        scored.append(sampling)
        return evaluate(model, data, sampling, limit)

    monkeypatch.setattr(module, "_evaluate", choose)
    rows = compare_fair([method], FairTerms(None, BUDGETS[:1], images=2, images_own=1), tmp_path)
    assert {row["lr"] for row in rows if row["method"] == method} == {1e-2 * (1 / 3)}
    assert scored == ["10", "10", "latin", "own"]  # of the pilots at 1 and 1/3 times the rate, and of the better


@pytest.mark.xdist_group("dask")
def test_two_workers_take_the_stages_of_one_method_in_turn(method, tmp_path, pool):
    terms = FairTerms(None, BUDGETS, images=2, images_own=1)
    rows = [row for row in compare_fair([method], terms, tmp_path, pool=pool) if row["method"] == method]
    assert {row["sampling"] for row in rows} == {"10", "50", "latin", "own"}
    assert len({row["lr"] for row in rows}) == 1
    assert {row["note"] for row in rows} <= {"", "not clearly better than blind", "worse than blind"}


def test_all_stands_for_every_model_and_the_ablations():
    found = fair_methods(["all"])
    assert set(ABLATIONS) < set(found)
    assert set(MODELS) - {"ccdm-fast"} < set(found)
    assert set(HEADS) < set(found)
    assert fair_methods(["ablations", "heads"]) == [FAST, *ABLATIONS, *HEADS]
    with pytest.raises(UserError, match="every method once"):
        fair_methods(["all", "ssn"])


PHANTOMS = (
    "data={name: phantom, options: {size: 16, raters: 3}, train: {count: 40}, val: {count: 2}}",
    "batch_size=2",
    "save_every=1",
)
TOWER = "{tower: [8, 8], tower_blocks: 1}"


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["ablations"], ("model.options.tower=[8, 8]", "model.options.light=[8, 8]", "model.options.tower_blocks=1")),
        (["heads"], (f"model.options.image_tower={TOWER}",)),
    ],
)
def test_ablations_and_heads_on_the_image_tower_run(names, settings, tmp_path):
    terms = FairTerms(None, (0.001,), images=2, images_own=1, overrides=(*PHANTOMS, *settings))
    rows = compare_fair(names, terms, tmp_path)
    for method in fair_methods(names):
        found = {row["sampling"]: row for row in rows if row["method"] == method}
        assert set(found) == {"10", "50", "own", "latin"}
        assert found["10"]["ged_16"] >= 0


def test_samples_that_would_be_the_same_are_drawn_once(tmp_path, monkeypatch):
    """A method of one evaluation draws the same within 10 and within 50; one of many does not."""
    drawn, score = [], module._score
    monkeypatch.setattr(module, "_score", lambda *given: drawn.append(given[2]) or score(*given))
    terms = FairTerms(None, (0.001,), images=2, images_own=1, overrides=PHANTOMS)
    single = "unet-ce model.options.base=8 model.options.multipliers=[1,2]"
    many = "ccdm model.options.base=8 model.options.multipliers=[1,2] model.options.evaluations=12"
    rows = compare_fair([single, many], terms, tmp_path)
    assert sorted({*drawn}) == ["10", "50", "latin", "own"]
    assert drawn.count("50") == 1
    found = {(row["method"], row.get("sampling")): row for row in rows}
    assert found[single, "50"]["ged_16"] == found[single, "10"]["ged_16"]
    assert found[single, "50"]["images_seen"] == found[single, "10"]["images_seen"]
    assert (found[many, "10"]["evaluations"], found[many, "50"]["evaluations"]) == (10, 12)


def test_further_trainings_are_added_to_a_comparison(method, tmp_path):
    terms, out = FairTerms(None, BUDGETS[:1], images=2, images_own=1), tmp_path / "out"
    before = compare_fair([method], terms, out)
    rows = compare_fair([method], replace(terms, seeds=2), out)
    own = [row for row in rows if row["method"] == method]
    assert [row["seed"] for row in own] == [0] * 4 + [1] * 4
    assert [row["ged_16"] for row in own[:4]] == [row["ged_16"] for row in before[:4]]
    assert {row["lr"] for row in own} == {before[0]["lr"]}  # the pilots of the first training chose it
    folder = next(path for path in out.iterdir() if path.is_dir())
    best, _ = module.best_pilot(folder)
    first, second = (load(folder / run / "last").state_dict() for run in (best, "run-seed-1"))
    assert any((first[key] != second[key]).any() for key in first)


def test_pairs_of_image_and_rater_are_those_that_the_loss_sees():
    draws = {name: MODELS[name].config_type().raters_per_image for name in ("ssn", "ccdm-fast", "mose", "flow-ssn")}
    assert draws == {"ssn": 1, "ccdm-fast": 4, "mose": None, "flow-ssn": 1}


@pytest.mark.parametrize(("method", "millions"), [*zip(PUBLISHED, (42, 24, 13.9), strict=True)])
def test_sizes_in_print(method, millions):
    model = method_config(method, (), None, {}).model
    count = sum(p.numel() for p in create(model.name, **model.options).parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.parametrize("text", ["20m,10m", "100,200", "soon"])
def test_budgets_are_rising_times(text):
    with pytest.raises(UserError, match="budget"):
        parse_budgets(text)
