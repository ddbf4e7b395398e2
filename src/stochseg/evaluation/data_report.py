"""Report on a data set before training: its facts, its problems, and how much its raters agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from stochseg.data.checks import DataCheck, check_data
from stochseg.metrics import pairwise_iou, without_void
from stochseg.types import Batch, DatasetInfo, Example


@dataclass(frozen=True)
class DataReport:
    """The check of a data set, and per split the mean pairwise IoU of the raters of each image."""

    check: DataCheck
    agreement: Mapping[str, Sequence[float]]

    def table(self) -> Table:
        """Build a table of the facts, one column per split."""
        info, splits = self.check.info, self.check.splits
        table = Table("", title=f"{info.name}: {self.check.path}")
        for split in splits:
            table.add_column(split, justify="right")
        facts = splits.values()
        table.add_row("examples", *(f"{f.examples:,}" for f in facts))
        table.add_row("groups", *(f"{len(f.groups):,}" for f in facts))
        sizes = (Counter({"×".join(map(str, size)): n for size, n in f.sizes.items()}) for f in facts)
        table.add_row("sizes", *map(_common, sizes))
        table.add_row("raters per image", *(_common(f.raters) for f in facts))
        for n in sorted({n for f in facts for n in f.drawn}):
            table.add_row(f"{n} map(s) with foreground", *(f"{f.drawn[n] / max(1, f.examples):.1%}" for f in facts))
        for i, name in enumerate(info.names):
            pixels = ("–" if f.pixels is None else f"{f.pixels[i] / f.pixels.sum():.2%}" for f in facts)
            table.add_row(f"pixels of {name}", *pixels)
        means = (f"{np.mean(values):.3f}" if values else "one rater" for values in self.agreement.values())
        table.add_row("agreement of two raters (IoU)", *means)
        return table


def report_data(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> DataReport:
    """Check a packed store or a folder, and measure the agreement of its raters.

    Args:
        path: A packed store (.h5) or a folder with dataset.yaml.
        progress: Called with the examples done so far and their total.
    """
    agreement: dict[str, list[float]] = defaultdict(list)

    def measure(split: str, example: Example, info: DatasetInfo) -> None:
        batch = Batch.collate([example], info.ignore)
        labels, _ = without_void(batch.raters, batch.raters, batch.mask)
        k = labels.shape[1]
        if k > 1:
            iou = pairwise_iou(labels, labels, info.num_classes)[0]
            agreement[split].append(float((iou.sum() - k) / (k * (k - 1))))

    check = check_data(path, measure, progress)
    return DataReport(check, {split: agreement[split] for split in check.splits})


def _common(counter: Counter[Any]) -> str:
    """Format the three most common values of a counter, with their proportions if there is more than one."""
    common = counter.most_common(3)
    if len(common) == 1:
        return str(common[0][0])
    more = f", {len(counter) - 3} more" if len(counter) > 3 else ""
    return ", ".join(f"{value}: {n / counter.total():.0%}" for value, n in common) + more
