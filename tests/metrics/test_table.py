"""The table of metrics: complete rows, families by count, formats."""

from __future__ import annotations

import math

import pytest

from stochseg.errors import UserError
from stochseg.metrics import METRIC_TABLE, METRICS, format_metric, metric_info, sort_metrics
from stochseg.metrics.table import FAMILIES, FUSIONS, class_of

DIRECTIONS = {False: "lower", True: "higher", None: ""}


@pytest.mark.parametrize("key", METRIC_TABLE)
def test_every_row_is_complete(key):
    info = metric_info(key)
    assert info.key == key
    assert all((info.title, info.short))
    assert info.meaning.endswith(".")
    assert info.meaning[0].isupper()
    assert ". " not in info.meaning, "one sentence"
    assert info.digits >= 0


def test_titles_differ():
    """Except of the two keys for network evaluations: per data set and per run."""
    titles = [info.title for key, info in METRIC_TABLE.items() if key != "evaluations"]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", METRICS)
def test_the_direction_is_that_of_the_class(name):
    assert metric_info(name).better == DIRECTIONS[METRICS[name].higher_is_better]


@pytest.mark.parametrize("family", FAMILIES + FUSIONS)
def test_a_family_is_named_by_its_count(family):
    info, plain = metric_info(f"{family}_100"), metric_info(family)
    assert (info.key, info.title, info.short) == (f"{family}_100", f"{plain.title}, n = 100", f"{plain.short}_100")
    assert (info.meaning, info.better, info.reduction) == (plain.meaning, plain.better, plain.reduction)


@pytest.mark.parametrize("key", ["gde_16", "ged_", "ged_x", "miou_16", "", "ged_-1", "ged_16_deviation", "/road"])
def test_an_unknown_metric_lists_the_known_ones(key):
    with pytest.raises(UserError, match="unknown metric.*ged_unbiased"):
        metric_info(key)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ged_16", 0.21236, "0.2124"),
        ("miou", 1.0, "1.0000"),
        ("evaluations_per_sample", 249.6, "250"),
        ("parameters", 9_123_456, "9123456"),
        ("seconds_per_sample", 0.00123456, "0.001235"),
        ("peak_megabytes", 12.34, "12.3"),
        ("brier", math.nan, ""),
        ("brier", None, ""),
    ],
)
def test_values_are_formatted_by_the_table(key, value, text):
    assert format_metric(key, value) == text


def test_digits_can_be_given():
    assert format_metric("ged_16", 0.21236, digits=2) == "0.21"


def test_metrics_are_sorted_by_the_table_and_a_family_by_its_count():
    keys = ["brier", "hm_iou_16", "id", "ged_100", "ged_16", "ged_unbiased", "hm_iou_100", "problem"]
    assert sort_metrics(keys) == ["ged_16", "ged_100", "hm_iou_16", "hm_iou_100", "ged_unbiased", "brier"]


def test_metrics_of_a_class_have_its_name():
    info = metric_info("ged_16/traffic light/sign")
    assert (info.title, info.short) == ("GED, n = 16: traffic light/sign", "GED_16")
    assert class_of("ged_16/traffic light/sign") == "traffic light/sign"
    assert class_of("ged_16") == ""
    assert sort_metrics(["dice/b", "iou/b", "iou/a", "miou"]) == ["miou", "iou/b", "iou/a", "dice/b"]
