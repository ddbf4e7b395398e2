"""Inference: prediction on files and volumes, faster engines, export to other languages."""

from stochseg.inference.engines import ENGINES, with_engine
from stochseg.inference.exporter import export
from stochseg.inference.gathering import GatherOptions, gather
from stochseg.inference.pipeline import Outcome, predict
from stochseg.inference.plan import PredictOptions
from stochseg.inference.points import Lesion, read_lesions
from stochseg.inference.result import to_numpy
from stochseg.inference.scans import predict_lesions
from stochseg.inference.stored import hash_loaded, run_on
from stochseg.inference.writers.dicom_seg import to_dicom_seg
from stochseg.inference.writers.nifti import to_nifti

__all__ = [
    "ENGINES",
    "GatherOptions",
    "Lesion",
    "Outcome",
    "PredictOptions",
    "export",
    "gather",
    "hash_loaded",
    "predict",
    "predict_lesions",
    "read_lesions",
    "run_on",
    "to_dicom_seg",
    "to_nifti",
    "to_numpy",
    "with_engine",
]
