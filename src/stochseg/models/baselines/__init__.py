"""Rival methods behind the interface of `stochseg.models.base`, one file each."""
