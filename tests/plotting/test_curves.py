"""Charts: they show their data and name their axes."""

import numpy as np
import pytest

from stochseg.analysis import Measurement
from stochseg.plotting import (
    histogram,
    learning_curves,
    method_bars,
    method_intervals,
    mode_frequencies,
    quality_against_cost,
    quality_against_evaluations,
    training_curve,
    write_figure,
)
from tests.support.figures import assert_shows_something, texts

POINTS = {5: {"ged_16": 0.3, "hm_iou_16": 0.6}, 10: {"ged_16": 0.2, "hm_iou_16": 0.7}}
LOG = [{"step": i, "train/loss": 2.0 / i} for i in range(1, 90)] + [{"step": 50, "val/ged": 0.3}]
METHODS = [{"method": f"method {i}", "ged": 0.1 * i, "hm_iou": 0.5, "seconds_per_sample": 0.1} for i in (1, 2)]

INTERVALS = {"worse": (0.4, (0.35, 0.44)), "better": (0.2, (0.15, 0.26))}


def costs(**changes):
    way = dict.fromkeys(("engine", "sampler", "grid", "noise"), "")
    row = {"model": "ccdm", **way, "height": 8, "width": 8, "evaluations": 5, "seconds": 1.0}
    return {**row, "ged_16": 0.3, "hm_iou_16": 0.6, **changes}


CURVES = {
    "evaluations": lambda: quality_against_evaluations({"ancestral": POINTS}),
    "cost": lambda: quality_against_cost([costs(), costs(evaluations=10, seconds=2.0), costs(model="b")], n=16),
    "methods": lambda: method_bars(METHODS, n=16),
    "methods by minutes": lambda: learning_curves({"a": [(10, 0.4), (20, 0.3)], "b": [(10, 0.5)], "c": []}, 0.45),
    "methods with intervals": lambda: method_intervals(INTERVALS, {"blind": 0.45}),
    "training": lambda: training_curve(LOG),
    "training by mIoU": lambda: training_curve([*LOG, {"step": 60, "val/ged": 0.4, "val/miou": 0.5}]),
    "training at the first step": lambda: training_curve(LOG[:1]),
    "training without records": lambda: training_curve([]),
    "modes": lambda: mode_frequencies(np.eye(3), np.eye(3), ("nothing", "core", "halo")),
    "one mode": lambda: mode_frequencies(np.ones((2, 1)), np.ones((2, 1)), ("core",)),
}


@pytest.mark.parametrize("name", CURVES)
def test_shows_something(name):
    assert_shows_something(CURVES[name]())


@pytest.mark.parametrize("name", ["evaluations", "cost", "methods"])
def test_titles_say_which_direction_is_better(name):
    said = " ".join(text.get_text() for text in texts(CURVES[name]()))
    assert "lower is better" in said
    assert "higher is better" in said


def test_methods_with_intervals_are_ordered_the_best_on_top():
    (axis,) = method_intervals(INTERVALS, {"blind": 0.45}).axes
    height = dict(zip((label.get_text() for label in axis.get_yticklabels()), axis.get_yticks(), strict=True))
    assert height["better"] > height["worse"]
    assert "blind" in {text.get_text() for text in axis.texts}


def test_rows_without_scores_are_skipped():
    figure = quality_against_cost([costs(), costs(model="untrained", ged_16="", hm_iou_16="")], n=16)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ccdm"]


def test_a_figure_is_written_as_png_all_or_nothing(tmp_path, monkeypatch):
    file = write_figure(CURVES["evaluations"](), tmp_path / "new" / "picture.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    broken = CURVES["evaluations"]()
    monkeypatch.setattr(broken, "savefig", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_figure(broken, file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in file.parent.iterdir()] == ["picture.png"]


@pytest.mark.parametrize("count", [3, 7, 16, 40, 64])
def test_ticks_of_histograms_have_exact_labels(count):
    values = np.random.default_rng(count).normal(size=count)
    figure = histogram(Measurement("area of nodule", values, np.full(count, 1 / count), "mm²"), "#e8853c")
    figure.draw_without_rendering()
    axis = figure.axes[0]
    for value, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True):
        assert label.get_text() == f"{100 * value:g}%"


def test_histograms_show_raters_and_thresholds_outside_the_samples():
    measured = Measurement("area", np.full(4, 5.0), np.full(4, 0.25), "px²")
    raters = Measurement("area", np.array([9.0, 9.0]), np.full(2, 0.5), "px²")
    axis = histogram(measured, "#e8853c", raters=raters, thresholds=[1.0]).axes[0]
    low, high = axis.get_xlim()
    assert low < 1.0
    assert high > 9.0
    (marks,) = [line for line in axis.lines if line.get_marker() == "v"]
    assert list(marks.get_xdata()) == [9.0, 9.0]
    assert len(set(marks.get_ydata())) == 2
