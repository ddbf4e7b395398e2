"""Stochastic segmenters behind one interface. Importing this package registers them."""

from stochseg.models import baselines
from stochseg.models.base import StochasticSegmenter
from stochseg.models.baselines import *  # noqa: F403  (the classes that `baselines.__all__` lists)
from stochseg.models.calibration import Calibration
from stochseg.models.ccdm import CCDM, CCDMConfig
from stochseg.models.ccdm_fast import CCDMFast, CCDMFastConfig
from stochseg.models.config import SegmenterConfig
from stochseg.models.conversion import CHECKPOINTS, convert_checkpoint
from stochseg.models.hands import fit_rater
from stochseg.models.hub import push
from stochseg.models.io import list_bundled, load, save, store_calibration
from stochseg.models.registry import MODELS, create, list_models, register
from stochseg.models.sampling import SamplingOptions
from stochseg.models.wrapped import WrappedConfig, WrappedSegmenter, wrap

__all__ = [
    "CCDM",
    "CHECKPOINTS",
    "MODELS",
    "CCDMConfig",
    "CCDMFast",
    "CCDMFastConfig",
    "Calibration",
    "SamplingOptions",
    "SegmenterConfig",
    "StochasticSegmenter",
    "WrappedConfig",
    "WrappedSegmenter",
    "convert_checkpoint",
    "create",
    "fit_rater",
    "list_bundled",
    "list_models",
    "load",
    "push",
    "register",
    "save",
    "store_calibration",
    "wrap",
    *baselines.__all__,
]
