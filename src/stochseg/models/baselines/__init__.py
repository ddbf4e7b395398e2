"""Rival methods behind the interface of `stochseg.models.base`, one file each."""

from stochseg.models.baselines.analog_bits import AnalogBits, AnalogBitsConfig
from stochseg.models.baselines.car import CAR, CARConfig
from stochseg.models.baselines.cflow import CFlow, CFlowConfig
from stochseg.models.baselines.cimd import CIMD, CIMDConfig
from stochseg.models.baselines.flow_ssn import FlowSSN, FlowSSNConfig
from stochseg.models.baselines.hprob_unet import HProbUNet, HProbUNetConfig
from stochseg.models.baselines.jprob_unet import JProbUNet, JProbUNetConfig
from stochseg.models.baselines.mose import MoSE, MoSEConfig
from stochseg.models.baselines.phiseg import PHiSeg, PHiSegConfig
from stochseg.models.baselines.pionono import Pionono, PiononoConfig
from stochseg.models.baselines.pixelseg import PixelSeg, PixelSegConfig
from stochseg.models.baselines.prob_unet import ProbUNet, ProbUNetConfig
from stochseg.models.baselines.rater_confusion import RaterConfusion, RaterConfusionConfig
from stochseg.models.baselines.smp import SMPConfig, SMPSegmenter
from stochseg.models.baselines.ssn import SSN, SSNConfig
from stochseg.models.baselines.unet_ce import UNetCE, UNetCEConfig

__all__ = [
    "CAR",
    "CIMD",
    "SSN",
    "AnalogBits",
    "AnalogBitsConfig",
    "CARConfig",
    "CFlow",
    "CFlowConfig",
    "CIMDConfig",
    "FlowSSN",
    "FlowSSNConfig",
    "HProbUNet",
    "HProbUNetConfig",
    "JProbUNet",
    "JProbUNetConfig",
    "MoSE",
    "MoSEConfig",
    "PHiSeg",
    "PHiSegConfig",
    "Pionono",
    "PiononoConfig",
    "PixelSeg",
    "PixelSegConfig",
    "ProbUNet",
    "ProbUNetConfig",
    "RaterConfusion",
    "RaterConfusionConfig",
    "SMPConfig",
    "SMPSegmenter",
    "SSNConfig",
    "UNetCE",
    "UNetCEConfig",
]
