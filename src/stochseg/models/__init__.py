"""Stochastic segmenters behind one interface."""

from stochseg.models import ccdm, ccdm_fast  # noqa: F401  (importing a model registers it)
from stochseg.models.base import StochasticSegmenter
from stochseg.models.baselines import (  # noqa: F401
    analog_bits,
    car,
    cflow,
    cimd,
    flow_ssn,
    hprob_unet,
    jprob_unet,
    mose,
    phiseg,
    pixelseg,
    prob_unet,
    smp,
    ssn,
    unet_ce,
)
from stochseg.models.io import load, save
from stochseg.models.registry import MODELS, create, register

__all__ = ["MODELS", "StochasticSegmenter", "create", "load", "register", "save"]
