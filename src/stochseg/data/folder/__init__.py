"""Data sets as folders of images, with one folder of label maps per rater.

ROOT/dataset.yaml            meaning of the labels (see `FolderConfig`); `init_folder` writes a first version
ROOT/splits.json             {"train": [ID, ...], "val": [...], "test": [...]}
ROOT/images/ID.EXT           raw intensities: PNG, JPEG, TIFF (any depth and channels), NIfTI or DICOM slices
ROOT/labels/RATER/ID.EXT     labels as gray levels, palette indices or colors; a rater may skip images

An image and its label maps share the ID, not the format; an ID may have folders, such as PATIENT/SLICE. NIfTI is turned
by its affine, except next to PNG, JPEG or TIFF: there its first axis is the width.
"""

from stochseg.data.folder.config import FolderConfig
from stochseg.data.folder.dataset import Folder, find_problems, find_strays, read_splits
from stochseg.data.folder.groups import describe_groups
from stochseg.data.folder.init import init_folder

__all__ = ["Folder", "FolderConfig", "describe_groups", "find_problems", "find_strays", "init_folder", "read_splits"]
