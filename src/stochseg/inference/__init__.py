"""Inference: what samples mean to the person who asked for them."""

from stochseg.inference.hypotheses import Hypothesis, hypotheses
from stochseg.inference.measures import Coverage, Measurement, coverage, measure, measurements
from stochseg.inference.plots import plot

__all__ = ["Coverage", "Hypothesis", "Measurement", "coverage", "hypotheses", "measure", "measurements", "plot"]
