"""Analysis of samples: readings with probabilities, measurements with intervals, answers to questions."""

from stochseg.analysis.intervals import Coverage, coverage
from stochseg.analysis.measurement import Measurement, Measurements
from stochseg.analysis.measures import measure, measurements
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypotheses, Hypothesis, hypotheses

__all__ = [
    "Answer",
    "Coverage",
    "Hypotheses",
    "Hypothesis",
    "Measurement",
    "Measurements",
    "Question",
    "coverage",
    "hypotheses",
    "measure",
    "measurements",
]
