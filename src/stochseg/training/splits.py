"""Splits of the data of a run: opened, cropped and resized as its config says."""

from __future__ import annotations

from pathlib import Path

from stochseg.data import Cropped, Fitted, Patches, Resized, SegmentationData, default_augmentation, open_dataset
from stochseg.training.config import CONFIG_FILE, TrainConfig, read_config


def open_split(config: TrainConfig, split: str) -> SegmentationData:
    """Open a split of a run's data, at its own size where the model fits images into another.

    Args:
        config: the run.
        split: "train", "val" or "test"; "test" has the options of "val".

    Returns:
        The split, cropped and resized as the run sees it.
    """
    further = config.data.train if split == "train" else config.data.val
    data = open_dataset(config.data.name, split, **{**config.data.options, **further})
    if config.data.crop is not None:
        data = Cropped(data, config.data.crop)
    if config.data.size is None or config.data.fit is not None:
        return data
    return Resized(data, config.data.size)


def training_view(data: SegmentationData, config: TrainConfig) -> SegmentationData:
    """The examples as the network sees them."""
    return data if config.data.fit is None else Fitted(data, config.data.fit)


def training_patches(data: SegmentationData, config: TrainConfig) -> SegmentationData:
    """The examples, or random parts of volumes if the run is trained on such."""
    patch = config.data.patch
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
