"""Data sets, the registry that finds them by name, importers, and augmentations."""

from stochseg.data import importers  # noqa: F401  (importing it registers the importers)
from stochseg.data.beyond import BeyondEnds
from stochseg.data.fitting import Fitted, pad_example
from stochseg.data.folder import Folder
from stochseg.data.importers.plans import IMPORTERS, plan_import
from stochseg.data.monai import DictionaryData, to_dictionaries
from stochseg.data.paths import data_at, open_all, open_path
from stochseg.data.phantom import Phantoms, PhantomVolumes
from stochseg.data.protocol import (
    DATASETS,
    KnownRaters,
    KnownTruth,
    SegmentationData,
    SizedData,
    WindowedData,
    group_names,
    has_single_annotations,
    open_dataset,
    pick_examples,
    register_dataset,
    spread,
)
from stochseg.data.store import Store, write_store
from stochseg.data.transforms import AUGMENTATIONS, default_augmentation, flip_rotate
from stochseg.data.views import Cropped, OfRater, Patches, Resized, Subset, of_rater

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "IMPORTERS",
    "BeyondEnds",
    "Cropped",
    "DictionaryData",
    "Fitted",
    "Folder",
    "KnownRaters",
    "KnownTruth",
    "OfRater",
    "Patches",
    "PhantomVolumes",
    "Phantoms",
    "Resized",
    "SegmentationData",
    "SizedData",
    "Store",
    "Subset",
    "WindowedData",
    "data_at",
    "default_augmentation",
    "flip_rotate",
    "group_names",
    "has_single_annotations",
    "of_rater",
    "open_all",
    "open_dataset",
    "open_path",
    "pad_example",
    "pick_examples",
    "plan_import",
    "register_dataset",
    "spread",
    "to_dictionaries",
    "write_store",
]
