"""Phantoms: synthetic lung slices whose conditional distribution over label maps is known."""

from stochseg.data.phantom.dataset import MODE_NAMES, PhantomConfig, Phantoms

__all__ = ["MODE_NAMES", "PhantomConfig", "Phantoms"]
