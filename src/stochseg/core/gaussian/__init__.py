"""Gaussian diffusion over real-valued maps: the process and its samplers."""

from stochseg.core.gaussian.process import GaussianProcess, normal_kl, standard_normal
from stochseg.core.gaussian.samplers import GAUSSIAN_STEPS, GaussianDenoise, Step, gaussian_step, gaussian_walk

__all__ = [
    "GAUSSIAN_STEPS",
    "GaussianDenoise",
    "GaussianProcess",
    "Step",
    "gaussian_step",
    "gaussian_walk",
    "normal_kl",
    "standard_normal",
]
