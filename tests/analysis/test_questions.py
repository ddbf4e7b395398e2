"""Questions about measurements: parsing and answering."""

import numpy as np
import pytest

from stochseg.analysis import Measurement, Question
from stochseg.errors import UserError


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("longest diameter > 6 mm", Question("longest diameter", "", ">", 6.0, "mm")),
        (" area of ground glass<=12.5mm2", Question("area", "ground glass", "<=", 12.5, "mm²")),
        ("components == 2", Question("components", "", "==", 2.0, "")),
        ("longest diameter in plane of nodule > 6 mm", Question("longest diameter in plane", "nodule", ">", 6.0, "mm")),
        ("volume >= 0.5 ml", Question("volume", "", ">=", 500.0, "mm³")),
    ],
)
def test_parsing_and_printing(text, question):
    assert Question.parse(text) == question
    assert Question.parse(str(question)) == question


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_threshold_must_be_finite(number):
    with pytest.raises(UserError, match=number):
        Question.parse(f"area > {number}")


def test_answer_is_the_weight_of_the_samples_with_an_interval():
    measured = Measurement("area", np.array([1.0, 5.0, 9.0]), np.array([0.5, 0.25, 0.25]), "mm²")
    answer = Question.parse("area >= 5 mm2").answer(measured)
    assert answer.probability == pytest.approx(0.5)
    assert answer.interval[0] < 0.5 < answer.interval[1]
    with pytest.raises(UserError, match="px².*mm²"):
        Question.parse("area > 5 px2").answer(measured)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("area > 100 px", "write px², not px"),
        ("area > 5 mm3", "write mm², not mm³"),
        ("longest diameter > 6 mm2", "write mm, not mm²"),
        ("volume of nodule > 1 mm", "write mm³, not mm"),
        ("components > 2 px", "omit px"),
        ("surface area > 2 ml", "write mm², not ml"),
    ],
)
def test_a_unit_that_the_measure_cannot_have(text, remedy):
    with pytest.raises(UserError, match=remedy):
        Question.parse(text)


@pytest.mark.parametrize(
    ("question", "in_mm", "expected"),
    [
        ("area > 10 mm²", False, "--spacing ROW,COLUMN, or ask in px²"),
        ("longest diameter > 10 mm", False, "or ask in px"),
        ("area > 10 px²", True, "it is measured in mm²; ask in mm²"),
        ("area > 10 mm²", True, ""),
    ],
)
def test_a_question_in_the_other_unit_has_its_remedy(question, in_mm, expected):
    problem = Question.parse(question).problem(volume=False, in_mm=in_mm)
    assert problem.endswith(expected)
    assert bool(problem) == bool(expected)
