"""Look at data before training on it: what is there, what is wrong, how much the raters agree."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from stochseg.data import SegmentationData, open_all, spread
from stochseg.data.folder import strays
from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou, without_void
from stochseg.types import Batch, DatasetInfo, Example


@dataclass
class SplitFacts:
    """What one split holds."""

    examples: int = 0
    groups: set[str] = field(default_factory=set)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    raters: Counter[int] = field(default_factory=Counter)
    drawn: Counter[int] = field(default_factory=Counter)  # examples by how many of their maps have any foreground
    pixels: Tensor | None = None
    agreement: list[float] = field(default_factory=list)

    def add(self, example: Example, info: DatasetInfo) -> None:
        batch = Batch.collate([example], info.ignore)
        labels, _ = without_void(batch.raters, batch.raters, batch.mask)
        self.examples += 1
        self.groups.add(example.group)
        self.sizes[(example.image.shape[1], example.image.shape[2])] += 1
        self.raters[len(example.raters)] += 1
        self.drawn[int((labels[0] > 0).flatten(1).any(1).sum())] += 1
        known = batch.raters if batch.mask is None else batch.raters[batch.mask]
        counts = torch.bincount(known.flatten(), minlength=info.num_classes)
        self.pixels = counts if self.pixels is None else self.pixels + counts
        k = labels.shape[1]
        if k > 1:
            iou = pairwise_iou(labels, labels, info.num_classes)[0]
            self.agreement.append(float((iou.sum() - k) / (k * (k - 1))))


@dataclass
class DataReport:
    """Facts by split, and the problems that would spoil a result."""

    path: Path
    info: DatasetInfo
    splits: dict[str, SplitFacts]
    problems: list[str]


def check_data(path: Path, progress: Callable[[int, int], None] | None = None) -> DataReport:
    """Read every example of every split. Problems are collected, not raised: one bad file must not hide the next."""
    data = open_all(path)
    total, done = sum(len(part) for part in data.values()), 0
    facts: dict[str, SplitFacts] = {}
    problems: list[str] = []
    images: dict[str, list[tuple[str, str]]] = defaultdict(list)
    groups: dict[str, set[str]] = defaultdict(set)
    for split, part in data.items():
        facts[split] = SplitFacts()
        for i in range(len(part)):
            try:
                example = part[i]
                facts[split].add(example, part.info)
            except UserError as error:
                problems.append(str(error))
            else:
                digest = hashlib.sha256(np.ascontiguousarray(example.image.numpy()).tobytes()).hexdigest()
                images[digest].append((split, example.id))
                groups[example.group].add(split)
            done += 1
            if progress is not None:
                progress(done, total)
        if len(part) == 0:
            problems.append(f"split {split!r} is empty")
    problems += _leaks(images, groups)
    if path.is_dir():
        problems += strays(path)
    return DataReport(path, next(iter(data.values())).info, facts, problems)


def _leaks(images: dict[str, list[tuple[str, str]]], groups: dict[str, set[str]]) -> list[str]:
    """What a model could know of the test data from training."""
    shared = [sorted(same) for same in images.values() if len({split for split, _ in same}) > 1]
    problems = [
        f"one image in several splits: {', '.join(f'{name} ({split})' for split, name in same)}" for same in shared
    ]
    for group, splits in groups.items():
        if len(splits) > 1:
            problems.append(f"group {group!r} is in several splits: {', '.join(sorted(splits))}")
    return problems


def data_table(report: DataReport) -> Table:
    """The facts, one column a split."""
    table = Table(title=f"{report.info.name}: {report.path}")
    table.add_column("")
    for split in report.splits:
        table.add_column(split, justify="right")

    def row(name: str, value: Callable[[SplitFacts], str]) -> None:
        table.add_row(name, *(value(facts) for facts in report.splits.values()))

    row("examples", lambda f: f"{f.examples:,}")
    row("groups", lambda f: f"{len(f.groups):,}")
    row("sizes", lambda f: _spread(Counter({f"{h}×{w}": n for (h, w), n in f.sizes.items()}), f.examples))
    row("raters an image", lambda f: _spread(f.raters, f.examples))
    for drawn in sorted({n for f in report.splits.values() for n in f.drawn}):
        row(f"{drawn} map(s) with foreground", lambda f, n=drawn: f"{f.drawn[n] / max(1, f.examples):.1%}")
    for i, name in enumerate(report.info.names):
        row(f"pixels of {name}", lambda f, i=i: "–" if f.pixels is None else f"{f.pixels[i] / f.pixels.sum():.2%}")
    row("agreement of two raters (IoU)", lambda f: f"{np.mean(f.agreement):.3f}" if f.agreement else "one rater")
    return table


def _spread(counter: Counter, total: int) -> str:
    """The values of a counter, the common first; with shares if there is more than one."""
    common = counter.most_common(3)
    if len(common) == 1:
        return str(common[0][0])
    more = f", {len(counter) - 3} more" if len(counter) > 3 else ""
    return ", ".join(f"{value}: {n / max(1, total):.0%}" for value, n in common) + more


def pick_examples(data: SegmentationData, count: int) -> list[Example]:
    """Examples spread evenly over the split."""
    if len(data) == 0:
        raise UserError("the split is empty; choose another")
    return [data[i] for i in spread(len(data), count)]
