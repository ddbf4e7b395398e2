"""Inference: whole files and folders in, files of the field's formats out."""

from stochseg.inference.predict import Options, Outcome, predict
from stochseg.inference.writers import to_dicom_seg, to_nifti, to_numpy

__all__ = ["Options", "Outcome", "predict", "to_dicom_seg", "to_nifti", "to_numpy"]
