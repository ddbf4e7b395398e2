"""Analysis of samples: readings, lesions, measurements with intervals, growth, questions."""

from stochseg.analysis.change import Growth, growth
from stochseg.analysis.conformal import calibrated_interval, conformal_interval, conformal_offset, conformity
from stochseg.analysis.intervals import Coverage, coverage
from stochseg.analysis.margins import margin_depths, margin_map, margin_scores
from stochseg.analysis.measurement import Measurement, Measurements
from stochseg.analysis.measures import measure, measurements
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypotheses, Hypothesis, hypotheses
from stochseg.analysis.separation import Lesion, lesions
from stochseg.analysis.soft_maps import sample_soft_map

__all__ = [
    "Answer",
    "Coverage",
    "Growth",
    "Hypotheses",
    "Hypothesis",
    "Lesion",
    "Measurement",
    "Measurements",
    "Question",
    "calibrated_interval",
    "conformal_interval",
    "conformal_offset",
    "conformity",
    "coverage",
    "growth",
    "hypotheses",
    "lesions",
    "margin_depths",
    "margin_map",
    "margin_scores",
    "measure",
    "measurements",
    "sample_soft_map",
]
