"""Phantoms: synthetic lung slices and volumes whose conditional distribution over label maps is known."""

from stochseg.data.phantom.dataset import MODE_NAMES, PhantomConfig, Phantoms, PhantomVolumes

__all__ = ["MODE_NAMES", "PhantomConfig", "PhantomVolumes", "Phantoms"]
