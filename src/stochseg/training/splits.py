"""Splits of the data of a run: opened, cropped and resized as its config says."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stochseg.data import (
    BeyondEnds,
    Cropped,
    Fitted,
    Patches,
    Resized,
    SegmentationData,
    Subset,
    default_augmentation,
    group_names,
    open_dataset,
)
from stochseg.errors import UserError
from stochseg.training.config import CONFIG_FILE, TrainConfig, read_config


def open_split(config: TrainConfig, split: str) -> SegmentationData:
    """Open a split of a run's data, at its own size where the model fits images into another.

    Args:
        config: the run.
        split: "train", "val" or "test"; "test" has the options of "val". "tune": patients of "train" that the run keeps
            back (`data.tune`).

    Returns:
        The split, cropped and resized as the run sees it.
    """
    stored = "train" if split == "tune" else split
    further = config.data.train if stored == "train" else config.data.val
    data = open_dataset(config.data.name, stored, **{**config.data.options, **further})
    if stored == "train" and (config.data.tune > 0 or split == "tune"):
        data = _part(data, config.data.tune, kept=split == "tune")
    if config.data.crop is not None:
        data = Cropped(data, config.data.crop)
    if config.data.size is None or config.data.fit is not None:
        return data
    return Resized(data, config.data.size)


def _part(data: SegmentationData, share: float, *, kept: bool) -> SegmentationData:
    """The patients of the split `tune`, or all others. A patient is the same part in any order and number of images."""
    chosen = [i for i, name in enumerate(group_names(data)) if (_place(name) < share) == kept]
    if not chosen:
        part = "tune" if kept else "train"
        raise UserError(f"data.tune={share:g}: no patient is left for the split {part!r}; choose another share")
    return Subset(data, chosen)


def _place(name: str) -> float:
    """A number in [0, 1) for a name."""
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def training_view(data: SegmentationData, config: TrainConfig) -> SegmentationData:
    """The examples as the network sees them."""
    return data if config.data.fit is None else Fitted(data, config.data.fit)


def training_patches(data: SegmentationData, config: TrainConfig) -> SegmentationData:
    """The examples, or random parts of volumes if the run is trained on such; with slices beyond their ends."""
    patch = config.data.patch
    if config.data.beyond:
        data = BeyondEnds(data, config.data.beyond)
    return data if patch is None else Patches(data, patch, foreground=config.data.patch_foreground)


def with_augmentation(config: TrainConfig, out: Path, resume: bool) -> TrainConfig:
    """The config with a named augmentation instead of "auto": that of the run to resume, else that of the data."""
    if config.data.augment != "auto":
        return config
    file = out / CONFIG_FILE
    if resume and file.exists():
        name = read_config(file).data.augment
    else:
        name = default_augmentation(open_split(config, "train").info)
    return config.model_copy(update={"data": config.data.model_copy(update={"augment": name})})
