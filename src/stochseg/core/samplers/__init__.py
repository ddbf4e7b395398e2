"""Samplers: one file an algorithm, one signature (`base.Sampler`)."""

from stochseg.core.samplers.ancestral import ancestral
from stochseg.core.samplers.base import Callback, Denoise, Sampler, SamplerOutput
from stochseg.core.samplers.corrector import corrector
from stochseg.core.samplers.ddim import ddim
from stochseg.core.samplers.one_step_kernel import one_step_kernel
from stochseg.core.samplers.sticky import sticky

SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "sticky": sticky,
    "ddim": ddim,
    "corrector": corrector(ancestral),
    "one_step_kernel": one_step_kernel,
}

__all__ = [
    "SAMPLERS",
    "Callback",
    "Denoise",
    "Sampler",
    "SamplerOutput",
    "ancestral",
    "corrector",
    "ddim",
    "one_step_kernel",
    "sticky",
]
