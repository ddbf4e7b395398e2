"""Checks of a data set before training: every example is read, and splits must not share images or patients."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stochseg.data.folder import find_problems
from stochseg.data.paths import open_all
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Example, Spacing


@dataclass
class SplitFacts:
    """Counts over the examples of a split."""

    examples: int = 0
    groups: set[str] = field(default_factory=set)
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Examples by (height, width), or (slices, height, width)."""
    spacings: Counter[Spacing] = field(default_factory=Counter)
    """Volumes by millimeters per voxel, to three digits."""
    raters: Counter[int] = field(default_factory=Counter)
    """Examples by number of label maps."""
    drawn: Counter[int] = field(default_factory=Counter)
    """Examples by number of label maps with any foreground."""
    pixels: Tensor | None = None
    """Pixels by class, void ones excluded."""

    def add(self, example: Example, info: DatasetInfo) -> None:
        """Count an example."""
        raters = example.raters
        mask = torch.ones_like(raters, dtype=torch.bool) if info.ignore is None else raters != info.ignore
        foreground = (raters > 0) & mask.all(0)
        pixels = torch.bincount(raters[mask], minlength=info.num_classes)
        self.examples += 1
        self.groups.add(example.group)
        self.sizes[tuple(example.image.shape[1:])] += 1
        if info.spatial_dims == 3 and example.spacing is not None:
            self.spacings[tuple(float(f"{mm:.3g}") for mm in example.spacing)] += 1
        self.raters[len(raters)] += 1
        self.drawn[int(foreground.flatten(1).any(1).sum())] += 1
        self.pixels = pixels if self.pixels is None else self.pixels + pixels


@dataclass(frozen=True)
class DataCheck:
    """Facts per split, and the problems that would spoil a result."""

    path: Path
    info: DatasetInfo
    splits: Mapping[str, SplitFacts]
    problems: Sequence[str]
    notes: Sequence[str] = ()
    """Facts that are no problems, but that training depends on."""


def check_data(
    path: Path,
    visit: Callable[[str, Example, DatasetInfo], None] = lambda split, example, info: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DataCheck:
    """Read every example of every split of a packed store or a folder.

    Problems are collected, not raised, so that one bad file does not hide the next.

    Args:
        path: A packed store (.h5) or a folder with dataset.yaml.
        visit: Called with the split, the example and the data set's info for every example; a `UserError` that it
            raises is a problem of the example.
        progress: Called with the examples done so far and their total.
    """
    data = open_all(path)
    total, done = sum(len(part) for part in data.values()), 0
    facts = {split: SplitFacts() for split in data}
    problems: list[str] = []
    images: dict[str, list[tuple[str, str]]] = defaultdict(list)
    groups: dict[str, set[str]] = defaultdict(set)
    for split, part in data.items():
        for i in range(len(part)):
            try:
                example = part[i]
                visit(split, example, part.info)
                facts[split].add(example, part.info)
            except UserError as error:
                problems.append(str(error))
            else:
                digest = hashlib.sha256(np.ascontiguousarray(example.image.numpy()).tobytes()).hexdigest()
                images[digest].append((split, example.id))
                groups[example.group].add(split)
            done += 1
            progress(done, total)
        if len(part) == 0:
            problems.append(f"split {split!r} is empty; add images of other patients, or remove the split")
    problems += _find_leaks(images, groups)
    if path.is_dir():
        counts = [f.pixels for f in facts.values() if f.pixels is not None]
        problems += find_problems(path, torch.stack(counts).sum(0).tolist() if counts else [])
    return DataCheck(
        path, next(iter(data.values())).info, facts, problems, _describe_sizes(facts) + _describe_spacings(facts)
    )


def _describe_sizes(facts: Mapping[str, SplitFacts]) -> list[str]:
    sizes = sorted({size[-2:] for each in facts.values() for size in each.sizes})
    if len(sizes) < 2:
        return []
    (low, narrow), (high, wide) = ([f(column) for column in zip(*sizes, strict=True)] for f in (min, max))
    return [
        f"the images have {len(sizes)} sizes, heights {low} to {high}, widths {narrow} to {wide}: training pads each "
        "batch to its largest image with void; to resize them instead, train with data.size=128 or "
        "'data.size=[128,256]' (the aspect is kept, and predictions have the size of their image)"
    ]


def _describe_spacings(facts: Mapping[str, SplitFacts]) -> list[str]:
    spacings = {spacing for each in facts.values() for spacing in each.spacings}
    if len(spacings) < 2:
        return []
    ranges = (f"{min(column):g} to {max(column):g}" for column in zip(*spacings, strict=True))
    slices, rows, columns = ranges
    return [
        f"the volumes have {len(spacings)} spacings: slices {slices} mm, rows {rows} mm, columns {columns} mm apart; "
        "to resample them to one, set `spacing` in dataset.yaml, such as [2.5, 0.7, 0.7]"
    ]


def _find_leaks(images: Mapping[str, Sequence[tuple[str, str]]], groups: Mapping[str, set[str]]) -> list[str]:
    """Report images (by checksum: their splits and IDs) and groups that are in more than one split."""
    shared = [sorted(same) for same in images.values() if len({split for split, _ in same}) > 1]
    return [
        *(
            f"one image in several splits: {', '.join(f'{id} ({split})' for split, id in same)}; keep it in one of them"
            for same in shared
        ),
        *(
            f"group {group!r} is in several splits: {', '.join(sorted(splits))}; keep it in one of them"
            for group, splits in groups.items()
            if len(splits) > 1
        ),
    ]
