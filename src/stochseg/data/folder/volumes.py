"""Volumes of a folder data set: turned by their affines, with the label maps of the same grid, and resampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from stochseg.data.fitting import nearest, resize_image, scale_spacing
from stochseg.data.folder.config import DESCRIPTION, FolderConfig
from stochseg.data.folder.labels import class_map
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.rtstruct import draw_structures, is_structure_set
from stochseg.data.readers.scans import Scan, orient, read_volume
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.types import Spacing


def read_volumes(
    tree: Tree, image: Sequence[str], labels: Iterable[str], config: FolderConfig
) -> tuple[Pixels, Pixels, Spacing]:
    """Read a volume "d h w c", its label maps "k d h w" and its spacing.

    Args:
        tree: The files.
        image: The file of the volume, or those of its DICOM series.
        labels: One file per rater.
        config: The content of dataset.yaml.

    Raises:
        UserError: A file cannot be read, is a 2-D image, or a label map has another grid than the volume.
    """
    scan = _read_image(tree, image, config)
    maps = np.stack([_read_labels(tree, name, scan, tree.where(image[0]), config) for name in labels])
    size = _target_size(scan, config.spacing)
    spacing = scale_spacing(scan.spacing, scan.values.shape[:3], size) or scan.spacing
    return _resample_image(scan.values, size), _resample_labels(maps, size), spacing


def _read_image(tree: Tree, names: Sequence[str], config: FolderConfig) -> Scan:
    """Read a volume "d h w c" in the order of the data set."""
    where = tree.where(names[0])
    scan = orient(read_volume(tree, names), config.plane, where)
    values = scan.values if scan.values.ndim == 4 else scan.values[..., None]
    if values.shape[-1] != config.image_channels:
        raise UserError(f"{where}: expected {config.image_channels} channel(s) ({DESCRIPTION}), got {values.shape[-1]}")
    if not np.isfinite(values).all():
        raise UserError(f"{where}: the volume has NaN or infinite values; replace them first")
    return Scan(values, scan.affine)


def _read_labels(tree: Tree, name: str, image: Scan, image_where: str, config: FolderConfig) -> Pixels:
    """Read the classes "d h w" of a label map."""
    where = tree.where(name)
    if name.lower().endswith(".dcm") and is_structure_set(content := tree.read(name), where):
        return draw_structures(content, image, config.names, where)
    scan = orient(read_volume(tree, [name]), config.plane, where)
    if scan.values.ndim != 3:
        raise UserError(f"{where}: expected one label per voxel, got shape {scan.values.shape}")
    if not scan.matches(image):
        raise UserError(
            f"{where}: its grid is {scan.describe()}; that of its image {image_where} is {image.describe()}; draw or "
            "resample the label map on the grid of the image (nearest neighbor)"
        )
    return np.stack([class_map(plane, config, where) for plane in scan.values])


def _target_size(scan: Scan, spacing: Spacing | None) -> tuple[int, ...]:
    """Return the size "d h w" of a volume at another spacing."""
    size = scan.values.shape[:3]
    if spacing is None:
        return size
    return tuple(max(1, round(n * old / new)) for n, old, new in zip(size, scan.spacing, spacing, strict=True))


def _resample_image(values: Pixels, size: tuple[int, ...]) -> Pixels:
    """Resample "d h w c"; integers stay integers."""
    if values.shape[:3] == size:
        return values
    resized = resize_image(torch.from_numpy(values.astype(np.float32)).movedim(-1, 0), size).movedim(0, -1).numpy()
    return np.rint(resized).astype(values.dtype) if values.dtype.kind in "iu" else resized


def _resample_labels(labels: Pixels, size: tuple[int, ...]) -> Pixels:
    """Resample "k d h w" to the nearest label."""
    if labels.shape[1:] == size:
        return labels
    return nearest(torch.from_numpy(labels.astype(np.int32)), size).numpy().astype(labels.dtype)
