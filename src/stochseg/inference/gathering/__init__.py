"""Predictions of other segmenters, gathered into samples: ensembles, folds, raters, soft maps."""

from stochseg.inference.gathering.options import GatherOptions
from stochseg.inference.gathering.pipeline import gather

__all__ = ["GatherOptions", "gather"]
