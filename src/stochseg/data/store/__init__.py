"""Packed stores: one HDF5 file with all splits of a data set, made for random reads."""

from stochseg.data.store.reading import Store, store_splits
from stochseg.data.store.writing import write_store

__all__ = ["Store", "store_splits", "write_store"]
