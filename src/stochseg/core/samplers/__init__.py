"""Samplers: one file an algorithm, one signature (`base.Sampler`)."""

from stochseg.core.samplers.ancestral import ancestral
from stochseg.core.samplers.base import Callback, Denoise, Sampler, SamplerOutput

SAMPLERS: dict[str, Sampler] = {"ancestral": ancestral}

__all__ = ["SAMPLERS", "Callback", "Denoise", "Sampler", "SamplerOutput", "ancestral"]
