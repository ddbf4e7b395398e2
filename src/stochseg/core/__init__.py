"""The paper's Section 3: the categorical diffusion process, its objective, its samplers; and the Gaussian process of
its rivals. Torch only."""

from stochseg.core.gaussian import (
    GAUSSIAN_STEPS,
    GaussianDenoise,
    GaussianProcess,
    Step,
    gaussian_step,
    gaussian_walk,
    normal_kl,
    standard_normal,
)
from stochseg.core.grids import GRIDS, Grid, Profile, make_grid
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
from stochseg.core.samplers import SAMPLERS, Denoise, Sampler, SamplerOutput, ancestral
from stochseg.core.schedule import SCHEDULES, Schedule, cosine, linear

__all__ = [
    "GAUSSIAN_STEPS",
    "GRIDS",
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
    "Noise",
    "Profile",
    "Sampler",
    "SamplerOutput",
    "Schedule",
    "SeededNoise",
    "Step",
    "ancestral",
    "cosine",
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
]
