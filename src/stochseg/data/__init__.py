"""Data sets, the registry that finds them by name, and their augmentations."""

from stochseg.data.folder import Folder
from stochseg.data.phantom import Phantoms
from stochseg.data.protocol import DATASETS, KnownTruth, SegmentationData, open_dataset, register_dataset
from stochseg.data.transforms import AUGMENTATIONS, flip_rotate

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Folder",
    "KnownTruth",
    "Phantoms",
    "SegmentationData",
    "flip_rotate",
    "open_dataset",
    "register_dataset",
]
