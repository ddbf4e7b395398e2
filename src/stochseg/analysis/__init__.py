"""The meaning of samples: readings with probabilities, measurements with intervals, questions with answers."""

from stochseg.analysis.measures import Coverage, Measurement, coverage, measure, measurements
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypothesis, hypotheses

__all__ = [
    "Answer",
    "Coverage",
    "Hypothesis",
    "Measurement",
    "Question",
    "coverage",
    "hypotheses",
    "measure",
    "measurements",
]
