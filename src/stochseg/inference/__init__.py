"""Inference: samples faster (engines), on files of any kind (predict), and what they mean (hypotheses, measures)."""

from stochseg.inference.engines import ENGINES, with_engine
from stochseg.inference.hypotheses import Hypothesis, hypotheses
from stochseg.inference.measures import Coverage, Measurement, coverage, measure, measurements
from stochseg.inference.plots import plot
from stochseg.inference.portable import export

__all__ = [
    "ENGINES",
    "Coverage",
    "Hypothesis",
    "Measurement",
    "coverage",
    "export",
    "hypotheses",
    "measure",
    "measurements",
    "plot",
    "with_engine",
]
