"""Data by its place on disk, whatever form it has there."""

from __future__ import annotations

from pathlib import Path

from stochseg.data.folder import Folder, read_splits
from stochseg.data.protocol import SegmentationData
from stochseg.data.store import Store, store_splits
from stochseg.errors import UserError


def open_path(path: Path) -> dict[str, SegmentationData]:
    """All splits of a packed store or of a folder with dataset.yaml."""
    if path.is_dir():
        return {split: Folder(split, root=str(path)) for split in read_splits(path)}
    if not path.exists():
        raise UserError(f"no data at {path}; give a packed store (.h5) or a folder with dataset.yaml")
    return {split: Store(split, path=str(path)) for split in store_splits(path)}
