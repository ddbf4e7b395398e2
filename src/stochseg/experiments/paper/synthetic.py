"""Stand-ins for the paper's data: stores of the same form with synthetic images, to try an experiment without them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from stochseg.data import write_store
from stochseg.data.importers.cityscapes import VOID
from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.experiments.paper.trainings import PaperData
from stochseg.types import DatasetInfo

COUNTS = {"train": 4, "val": 2, "test": 2}
BLOCK = 16
"""Side in pixels of the squares of one label."""
MARGIN = 52
"""Pixels that the files of LIDCv2 have beyond the crop of the paper."""


def write_synthetic(form: PaperData, file: Path) -> Path:
    """Write a store with the classes, channels, raters and sizes of a data set; an existing file is kept."""
    if file.exists():
        return file
    lidc = form.classes == 2
    info = DatasetInfo(
        name=f"synthetic {form.name}",
        num_classes=form.classes,
        image_channels=form.channels,
        ignore=None if lidc else VOID,
        orientation="free" if lidc else "upright",
    )
    names = [(f"{split}-{i}", split) for split, count in COUNTS.items() for i in range(count)]
    items = [Item(name, name, split, partial(_read, form, name, split, i)) for i, (name, split) in enumerate(names)]
    provenance = Provenance(kind="synthetic", source="none", license="public domain", note="random squares")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_store(Plan(info, provenance, items, max_raters=4 if lidc else 1), file)


def _read(form: PaperData, name: str, split: str, seed: int) -> Record:
    """Squares of random labels, with intensities that depend on the label."""
    rng = np.random.default_rng(seed)
    height, width = (n + (MARGIN if form.crop else 0) for n in form.size)
    raters = 4 if form.classes == 2 else 1
    coarse = rng.integers(form.classes, size=(raters, -(-height // BLOCK), -(-width // BLOCK)))
    labels = coarse.repeat(BLOCK, 1).repeat(BLOCK, 2)[:, :height, :width].astype(np.uint8)
    noise = rng.normal(scale=10, size=(height, width, form.channels))
    image = (labels[0][..., None] * (200 / form.classes) + noise).clip(0, 255).astype(np.uint8)
    if form.classes > 2:
        labels[:, :4] = VOID
    return Record(name, name, split, image, labels)
