"""The content of a folder plane by plane, before dataset.yaml describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from stochseg.data.folder.files import FolderFiles
from stochseg.data.readers import geojson, itk, nifti
from stochseg.data.readers.formats import compact
from stochseg.data.readers.geojson import read_polygons
from stochseg.data.readers.nifti import Plane
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.rtstruct import is_structure_set, read_structures
from stochseg.data.readers.scans import natural_plane, read_volume
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError

MAX_FILES, MAX_VOLUMES = 200, 20
"""Number of images, and of label maps, that `init_folder` opens, evenly spaced; fewer of volumes, which are large."""


def find_dims(files: FolderFiles) -> int:
    """Return 3 if the images are volumes, else 2, by their formats and headers.

    NIfTI files of one slice are images, unless another file is a volume: then they are volumes of one slice.

    Raises:
        UserError: The folder has both volumes and 2-D images.
    """
    kinds: dict[str, str] = {}
    for id in _evenly_spaced(sorted(files.images), 2):
        kinds.setdefault(_kind(files, id), id)
    if "volume" not in kinds:
        return 2
    if "image" in kinds:
        volume, image = (files.tree.where(files.images[kinds[kind]]) for kind in ("volume", "image"))
        raise UserError(f"{volume} is a volume, {image} is a 2-D image; keep them in two data sets")
    return 3


def _kind(files: FolderFiles, id: str) -> str:
    """Return "volume", "image", or "slice" for a volume of one slice."""
    name = files.images[id].lower()
    if id in files.series or name.endswith(itk.SUFFIXES):
        return "volume"
    if not name.endswith(nifti.SUFFIXES):
        return "image"
    name = files.images[id]
    shape = nifti.stated_shape(files.tree.path / name, files.tree.where(name))
    if len(shape) < 3:
        return "image"
    return "volume" if min(shape[:3]) > 1 else "slice"


def common_plane(files: FolderFiles) -> Plane:
    """Return the plane in which most volumes were sliced."""
    ids = _evenly_spaced(sorted(files.images), 3)
    return Counter(natural_plane(read_volume(files.tree, files.sources(id))) for id in ids).most_common(1)[0][0]


def image_planes(files: FolderFiles, dims: int) -> Iterator[tuple[str, Pixels]]:
    """Yield intensities "h w c" with the name of their file: images, or the planes of volumes."""
    if dims == 2:
        for name in _evenly_spaced(sorted(files.images.values()), dims):
            yield name, files.read_image(name).values
        return
    for id in _evenly_spaced(sorted(files.images), dims):
        name = files.images[id]
        for plane in _volume_planes(files.tree, files.sources(id)):
            if not np.isfinite(plane).all():
                raise UserError(f"{files.tree.where(name)}: the volume has NaN or infinite values; replace them first")
            yield name, plane if plane.ndim == 3 else plane[..., None]


def label_files(files: FolderFiles, dims: int) -> Sequence[str]:
    """Return the label maps to inspect, without those that are drawn as contours."""
    maps = sorted(name for id in files.images for name in files.raters(id).values())
    return _evenly_spaced([name for name in maps if not is_drawn(files.tree, name)], dims)


def is_drawn(tree: Tree, name: str) -> bool:
    """Whether a label map is a list of contours: GeoJSON or a DICOM RT structure set."""
    if name.lower().endswith(geojson.SUFFIXES):
        return True
    return name.lower().endswith(".dcm") and is_structure_set(tree.read(name), tree.where(name))


def drawn_classes(files: FolderFiles) -> list[str]:
    """Return the names of all structures and annotations, sorted."""
    found = set[str]()
    for name in (name for id in files.images for name in files.raters(id).values()):
        if name.lower().endswith(geojson.SUFFIXES):
            found |= {kind for kind, _ in read_polygons(files.tree.read(name), files.tree.where(name))}
        elif is_drawn(files.tree, name):
            found |= read_structures(files.tree.read(name), files.tree.where(name)).keys()
    return sorted(found - {""})


def label_planes(files: FolderFiles, name: str, dims: int) -> Iterable[Pixels]:
    """Return the label map of an image, or those of the planes of a volume."""
    return [files.tree.labels(name)] if dims == 2 else _volume_planes(files.tree, [name])


def _volume_planes(tree: Tree, names: Sequence[str]) -> Iterator[Pixels]:
    for plane in np.moveaxis(read_volume(tree, names).values, 2, 0):
        yield compact(plane, tree.where(names[0]))


def _evenly_spaced(names: Sequence[str], dims: int) -> Sequence[str]:
    return names[:: max(1, -(-len(names) // (MAX_FILES if dims == 2 else MAX_VOLUMES)))]
