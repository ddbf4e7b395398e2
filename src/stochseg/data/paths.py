"""Data by its place on disk, whatever form it has there."""

from __future__ import annotations

from pathlib import Path

from stochseg.data.folder import Folder, read_splits
from stochseg.data.protocol import SegmentationData
from stochseg.data.store import Store, store_splits
from stochseg.errors import UserError


def data_at(path: Path) -> dict[str, object]:
    """How a training config names the data at this place."""
    if path.is_dir():
        return {"name": "folder", "options": {"root": str(path)}}
    return {"name": "store", "options": {"path": str(path)}}


def open_path(path: str | Path, split: str) -> SegmentationData:
    """One split of a packed store or of a folder with dataset.yaml."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"no data at {path}; give a packed store (.h5) or a folder with dataset.yaml")
    return Folder(split, root=str(path)) if path.is_dir() else Store(split, path=str(path))


def open_all(path: str | Path) -> dict[str, SegmentationData]:
    """Every split of it."""
    path = Path(path)
    splits = read_splits(path) if path.is_dir() else store_splits(path)
    return {split: open_path(path, split) for split in splits}
