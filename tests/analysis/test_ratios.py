"""Ratios of two classes: the vertical cup/disc ratio and its like."""

import math

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis.questions import Question
from stochseg.errors import UserError
from stochseg.reports.image import ImageReport
from stochseg.types import DatasetInfo, Samples

RATIO = "vertical cup/disc ratio"
INFO = DatasetInfo(
    num_classes=3, image_channels=1, class_names=("background", "disc", "cup"), measures=(RATIO,), name="eyes"
)


def eye(disc, cup):
    """A label map of a disc of this height, and a cup inside."""
    maps = torch.zeros(20, 24, dtype=torch.int64)
    maps[2 : 2 + disc, 3:15] = 1
    maps[3 : 3 + cup, 5:9] = 2
    return maps


MAPS = torch.stack([eye(10, 3), eye(10, 6), eye(8, 7), eye(0, 0)])


def test_ratio_is_the_height_of_the_part_in_the_height_of_both():
    found = stochseg.measure(MAPS, RATIO, info=INFO)
    np.testing.assert_allclose(found.values, [0.3, 0.6, 7 / 8, np.nan])
    # A cup that sticks out of its disc belongs to the height of both, by hand: rows 2 to 9.
    assert stochseg.measure(eye(3, 7)[None], RATIO, info=INFO).values.tolist() == [7 / 8]
    wide = stochseg.measure(MAPS[:1], "horizontal cup/disc ratio", info=INFO, spacing=(5.0, 0.1))
    assert wide.values.tolist() == [4 / 12]


def test_samples_without_a_value_are_told_and_do_not_enter_the_statistics():
    found = stochseg.measure(MAPS, RATIO, info=INFO)
    assert found.undefined == 0.25
    assert found.mean == pytest.approx((0.3 + 0.6 + 7 / 8) / 3)
    assert found.interval(0.9) == (pytest.approx(0.3), 7 / 8)
    assert "undefined in 25%" in repr(found)
    assert found.probability(">", 0.5) == 0.5, "of all samples"
    assert found.probability(">", 0.5) + found.probability("<=", 0.5) == 0.75
    empty = stochseg.measure(torch.zeros(2, 4, 4, dtype=torch.int64), RATIO, info=INFO)
    assert math.isnan(empty.mean)
    assert math.isnan(empty.quantile(0.5))
    assert empty.undefined == 1


def test_questions_about_ratios():
    question = Question.parse("vertical cup/disc ratio > 0.6")
    assert (question.what, question.label, question.threshold) == (RATIO, "", 0.6)
    assert Question.parse(str(question)) == question
    assert question.problem(volume=False, in_mm=False) == question.problem(volume=False, in_mm=True) == ""
    assert "volume" in question.problem(volume=True, in_mm=True)
    assert question.answer(stochseg.measure(MAPS, question.what, info=INFO)).probability == 0.25
    with pytest.raises(UserError, match="omit mm"):
        Question.parse("vertical cup/disc ratio > 0.6 mm")


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("vertical cup/rim ratio", {}, "label 'rim': no class"),
        ("vertical cup/cup ratio", {}, "expected two classes"),
        (RATIO, {"label": 1}, "omit it"),
        ("diagonal cup/disc ratio", {}, "vertical PART/WHOLE ratio"),
    ],
)
def test_impossible_ratios(what, options, message):
    with pytest.raises(UserError, match=message):
        stochseg.measure(MAPS, what, info=INFO, **options)


def test_volumes_have_no_ratios():
    with pytest.raises(UserError, match="a volume has none"):
        stochseg.measure(MAPS[None], RATIO, info=INFO.model_copy(update={"spatial_dims": 3}))


def test_ratios_that_the_data_name_are_reported():
    names = [each.name for each in stochseg.measurements(MAPS, info=INFO)]
    assert names[-1] == RATIO
    mean = torch.nn.functional.one_hot(MAPS, 3).float().mean(0).movedim(-1, 0)[None]
    samples = Samples(MAPS[None], mean, torch.full((1, 4), 0.25), 0, 1, INFO)
    report = ImageReport(
        "eye", np.zeros((20, 24)), samples, INFO, raters=MAPS[:2], questions=[Question.parse(f"{RATIO} > 0.6")]
    )
    text = report.answer_texts[0]
    assert text.startswith("P(vertical cup/disc ratio > 0.6) = 25%")
    assert "undefined in 25% of the samples, which count as no" in text
    rows = {row[0]: row for row in report._table().rows}
    assert rows[RATIO][-1] == "0.3, 0.6"
    titles = [picture.title for picture in report._measurement_section(("area",)).pictures]
    assert "Vertical cup/disc ratio:" in titles
