"""Inference: samples faster (engines), on files of any kind (predict), and what they mean (hypotheses, measures)."""

from stochseg.inference.engines import ENGINES, with_engine
from stochseg.inference.hypotheses import Hypothesis, hypotheses
from stochseg.inference.measures import Coverage, Measurement, coverage, measure, measurements
from stochseg.inference.plan import Options
from stochseg.inference.plots import plot
from stochseg.inference.portable import export
from stochseg.inference.predict import Outcome, predict
from stochseg.inference.writers import to_dicom_seg, to_nifti, to_numpy

__all__ = [
    "ENGINES",
    "Coverage",
    "Hypothesis",
    "Measurement",
    "Options",
    "Outcome",
    "coverage",
    "export",
    "hypotheses",
    "measure",
    "measurements",
    "plot",
    "predict",
    "to_dicom_seg",
    "to_nifti",
    "to_numpy",
    "with_engine",
]
