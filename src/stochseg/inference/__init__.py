"""Inference: prediction on files of any kind, faster engines, export."""

from stochseg.inference.engines import ENGINES, with_engine
from stochseg.inference.pipeline import Outcome, predict
from stochseg.inference.plan import Options
from stochseg.inference.portable import export
from stochseg.inference.writers import to_dicom_seg, to_nifti, to_numpy

__all__ = ["ENGINES", "Options", "Outcome", "export", "predict", "to_dicom_seg", "to_nifti", "to_numpy", "with_engine"]
