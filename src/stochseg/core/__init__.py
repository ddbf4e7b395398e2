"""Section 3 of the paper: categorical diffusion over label maps of any number of dimensions. Torch and numpy only.

    CCDM Eq. q_xt_given_x0 (5)     `CategoricalProcess.q_marginal`, `CategoricalProcess.q_sample`
    CCDM Eq. q_params (7)          `CategoricalProcess.posterior` with a one-hot p0
    CCDM Eq. p_params (12)         `CategoricalProcess.posterior`
    CCDM Eq. elbo_third (15)       `prior_kl`
    CCDM Eq. kl_div (16)           `kl_terms`
    CCDM Alg. 1                    `stochseg.models.CCDM.loss`, with `OBJECTIVES`
    CCDM Alg. 2                    `ancestral`; the other samplers are in `SAMPLERS`

Equations are named by their labels in the paper's source, with their numbers in parentheses. `MaskedProcess` is another
forward process with the same interface. `core.gaussian` has the Gaussian process of the baselines.
"""

from stochseg.core.coherence import coherent_uniform
from stochseg.core.gaussian.process import GaussianProcess, normal_kl, standard_normal
from stochseg.core.gaussian.samplers import GAUSSIAN_STEPS, GaussianDenoise, gaussian_step, gaussian_walk
from stochseg.core.grids import GRIDS, Grid, Profile, make_grid
from stochseg.core.masked import MaskedProcess
from stochseg.core.noise import (
    NOISES,
    BatchNoise,
    LatinNoise,
    Noise,
    SeededNoise,
    draw_categorical,
    draw_normal,
    draw_uniform_labels,
)
from stochseg.core.objective import OBJECTIVES, cross_entropy_terms, kl_terms, mixture_terms, prior_kl
from stochseg.core.process import CategoricalProcess
from stochseg.core.samplers import MASKED_SAMPLERS, SAMPLERS
from stochseg.core.samplers.ancestral import ancestral
from stochseg.core.samplers.base import Denoise, Sampler, SamplerOutput
from stochseg.core.schedule import SCHEDULES, Schedule, cosine, cosine_released, linear, straight

__all__ = [
    "GAUSSIAN_STEPS",
    "GRIDS",
    "MASKED_SAMPLERS",
    "NOISES",
    "OBJECTIVES",
    "SAMPLERS",
    "SCHEDULES",
    "BatchNoise",
    "CategoricalProcess",
    "Denoise",
    "GaussianDenoise",
    "GaussianProcess",
    "Grid",
    "LatinNoise",
    "MaskedProcess",
    "Noise",
    "Profile",
    "Sampler",
    "SamplerOutput",
    "Schedule",
    "SeededNoise",
    "ancestral",
    "coherent_uniform",
    "cosine",
    "cosine_released",
    "cross_entropy_terms",
    "draw_categorical",
    "draw_normal",
    "draw_uniform_labels",
    "gaussian_step",
    "gaussian_walk",
    "kl_terms",
    "linear",
    "make_grid",
    "mixture_terms",
    "normal_kl",
    "prior_kl",
    "standard_normal",
    "straight",
]
