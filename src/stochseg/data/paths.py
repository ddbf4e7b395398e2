"""Data sets by their path on disk."""

from __future__ import annotations

from pathlib import Path

from stochseg.data.folder import Folder, read_splits
from stochseg.data.protocol import SegmentationData
from stochseg.data.store import Store, store_splits
from stochseg.errors import UserError


def data_at(path: Path) -> dict[str, object]:
    """Return the section `data` of a training config for the data at a path.

    Args:
        path: A packed store (.h5), or a folder with dataset.yaml.

    Returns:
        The section, without keys that have their defaults.

    Example:
        >>> data_at(Path("data/lidc.h5"))
        {'name': 'store', 'options': {'path': 'data/lidc.h5'}}
    """
    if path.is_dir():
        return {"name": "folder", "options": {"root": str(path)}}
    return {"name": "store", "options": {"path": str(path)}}


def open_path(path: str | Path, split: str) -> SegmentationData:
    """Open one split of a packed store (.h5) or of a folder with dataset.yaml.

    Args:
        path: The store or the folder.
        split: "train", "val" or "test".

    Returns:
        The split, whose examples are read when they are used.

    Raises:
        UserError: There is no data at this path, or it has no such split.

    Example:
        >>> import tempfile
        >>> from stochseg.data.example import write_example_folder
        >>> from stochseg.data.folder import init_folder
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     root = write_example_folder(Path(scratch) / "mine", count=12, size=16)
        ...     _ = init_folder(root)
        ...     sizes = {split: len(data) for split, data in open_all(root).items()}
        ...     train = open_path(root, "train")
        >>> sizes, len(train)
        ({'train': 4, 'val': 4, 'test': 4}, 4)
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"no data at {path}; give a packed store (.h5) or a folder with dataset.yaml")
    return Folder(split, root=str(path)) if path.is_dir() else Store(split, path=str(path))


def open_all(path: str | Path) -> dict[str, SegmentationData]:
    """Open every split of a packed store (.h5) or of a folder with dataset.yaml; see `open_path`.

    Args:
        path: The store or the folder.

    Returns:
        The splits by name.
    """
    path = Path(path)
    splits = read_splits(path) if path.is_dir() else store_splits(path)
    return {split: open_path(path, split) for split in splits}
