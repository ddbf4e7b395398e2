"""Inference: engines that compute the same samples faster, and models for other languages."""

from stochseg.inference.engines import ENGINES, with_engine
from stochseg.inference.portable import export

__all__ = ["ENGINES", "export", "with_engine"]
