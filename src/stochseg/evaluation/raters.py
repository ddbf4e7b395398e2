"""How much the raters of a data set agree: in pairs, all together, and each of them with the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.data import open_all
from stochseg.data.consensus import majority
from stochseg.errors import UserError
from stochseg.metrics.agreement import Votes, count_votes, surface_distance
from stochseg.types import DatasetInfo, Example

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
"""Of the bootstrap over patients."""
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with the interval that resampled patients give; NaN if nothing can be said."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """Two raters of one image and class. distance: of their surfaces, in mm if the image states its spacing, else in
    pixels; pixels: the same in pixels. Both are NaN if one rater marked nothing."""

    image: str
    group: str
    raters: tuple[str, str]
    label: int
    dice: float
    iou: float
    distance: float
    pixels: float


@dataclass
class RaterReport:
    """Agreement of the raters of a data set.

    pairs: every pair of raters of every image and class that one of both marked; votes: per patient, for kappa;
    confusion: per rater and patient, the label of the majority of the others "l" and that of the rater "s"; sizes: per
    rater and patient, pixels of each class by the rater and by the mean of the others, "2 l"; places: split and number
    of each image, if it comes from a data set on disk.
    """

    info: DatasetInfo
    named: bool
    in_mm: bool
    images: int = 0
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    votes: dict[str, Votes] = field(default_factory=dict)
    confusion: dict[str, dict[str, Floats]] = field(default_factory=lambda: defaultdict(dict))
    sizes: dict[str, dict[str, Floats]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def raters(self) -> list[str]:
        """Names of the raters, or of their places if they have none."""
        return sorted(self.confusion)

    @property
    def groups(self) -> list[str]:
        """Patients with two raters or more."""
        return sorted(self.votes)

    def agreement(self, what: str, label: int, raters: tuple[str, str] | None = None) -> Estimate:
        """Mean of "dice", "iou" or "distance" of a class: over the pairs of an image, then over images.

        Args:
            what: The measure.
            label: The class.
            raters: Of two raters only.
        """
        what = "pixels" if what == "distance" and not self.in_mm else what
        chosen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for pair in self.pairs:
            if pair.label == label and raters in (None, pair.raters) and not np.isnan(getattr(pair, what)):
                chosen[pair.group][pair.image].append(getattr(pair, what))
        sums = [[sum(map(np.mean, images.values())), len(images)] for images in chosen.values()]
        return _bootstrap(np.array(sums, np.float64).reshape(-1, 2), lambda total: total[..., 0] / total[..., 1])

    def kappa(self, label: int | None = None) -> Estimate:
        """Fleiss' kappa of all classes, or of one against the others."""
        groups = self.votes.values()
        sums = np.array([[v.disagreement, v.votes] for v in groups]).reshape(-1, 2 * self.info.num_classes)

        def kappa(total: Floats) -> Floats:
            parts = total.reshape(-1, 2, self.info.num_classes)
            votes = [Votes(disagreement, counts) for disagreement, counts in parts]
            found = [v.kappa if label is None else v.kappa_per_class[label] for v in votes]
            return np.array(found).reshape(total.shape[:-1])

        return _bootstrap(sums, kappa)

    def confusion_of(self, rater: str) -> Floats:
        """Part of the pixels to which a rater gives label s where the majority of the others has l, "l s"."""
        counts = np.sum(list(self.confusion[rater].values()), 0)
        total = counts.sum(1, keepdims=True)
        return np.where(total > 0, counts / np.maximum(total, 1), np.nan)

    def bias(self, rater: str, label: int) -> Estimate:
        """How much larger a rater draws a class than the others do, as a fraction: 0.1 is 10% larger."""
        sums = np.array([both[:, label] for both in self.sizes[rater].values()])
        return _bootstrap(sums, lambda total: total[..., 0] / total[..., 1] - 1)

    def hardest(self, count: int) -> list[str]:
        """Images with the lowest mean Dice of their pairs and classes."""
        per_image: dict[str, list[float]] = defaultdict(list)
        for pair in self.pairs:
            per_image[pair.image].append(pair.dice)
        return sorted(per_image, key=lambda image: (float(np.mean(per_image[image])), image))[:count]


def compare_raters(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> RaterReport:
    """Measure the agreement of the raters of a packed store or a folder, over all splits.

    Args:
        path: A packed store (.h5) or a folder with dataset.yaml.
        progress: Called with the images done so far and their total.

    Returns:
        The report.

    Raises:
        UserError: No image has two raters.
    """
    splits = open_all(path)
    info = next(iter(splits.values())).info
    total = sum(map(len, splits.values()))
    places: dict[str, tuple[str, int]] = {}

    def read() -> Iterator[Example]:
        for split, data in splits.items():
            for i in range(len(data)):
                example = data[i].rated(info.ignore)
                places[example.id] = (split, i)
                yield example
                progress(len(places), total)

    report = measure_raters(read(), info)
    report.places.update(places)
    if not report.votes:
        raise UserError(f"{path}: no image has two raters, so there is no agreement to measure")
    return report


def measure_raters(examples: Iterable[Example], info: DatasetInfo) -> RaterReport:
    """Measure the agreement of the raters of examples.

    Args:
        examples: Images with their raters; those with one rater are left out.
        info: Facts about the data.
    """
    report = RaterReport(info, named=True, in_mm=True)
    for example in examples:
        if len(example.raters) < 2:
            continue
        report.images += 1
        report.named &= len(example.rater_names) == len(example.raters)
        report.in_mm &= example.spacing is not None
        names = example.rater_names or tuple(f"rater {i + 1}" for i in range(len(example.raters)))
        _add_example(report, example, names)
    return report


def _add_example(report: RaterReport, example: Example, names: Sequence[str]) -> None:
    info, maps = report.info, example.raters.numpy()
    group = example.group or example.id
    votes = count_votes(maps, info.num_classes, info.ignore)
    report.votes[group] = report.votes[group] + votes if group in report.votes else votes
    for i, j in combinations(range(len(maps)), 2):
        first, second = sorted((i, j), key=lambda place: names[place])
        report.pairs += _pairs(example, group, (names[first], names[second]), maps[[first, second]], info)
    sizes = np.stack([(maps == label).reshape(len(maps), -1).sum(1) for label in range(info.num_classes)], 1)
    for i, name in enumerate(names):
        others = np.delete(maps, i, 0)
        _add(report.confusion[name], group, _confusion(majority(others, info.num_classes, info.ignore), maps[i], info))
        _add(report.sizes[name], group, np.stack([sizes[i], np.delete(sizes, i, 0).mean(0)]))


def _pairs(example: Example, group: str, names: tuple[str, str], maps: Any, info: DatasetInfo) -> list[Pair]:
    known = (maps != info.ignore).all(0) if info.ignore is not None else np.ones(maps.shape[1:], bool)
    found = []
    for label in range(1, info.num_classes):
        a, b = (maps == label) & known
        both, either = int((a & b).sum()), int((a | b).sum())
        if either:
            pixels = surface_distance(a, b)
            distance = pixels if example.spacing is None else surface_distance(a, b, example.spacing)
            dice, iou = 2 * both / (both + either), both / either
            found.append(Pair(example.id, group, names, label, dice, iou, distance, pixels))
    return found


def _confusion(truth: Any, labels: Any, info: DatasetInfo) -> Floats:
    n = info.num_classes
    known = (truth < n) & (labels < n)
    counts: Floats = np.bincount(truth[known] * n + labels[known], minlength=n * n).reshape(n, n).astype(np.float64)
    return counts


def _add(table: dict[str, Floats], group: str, values: Floats) -> None:
    table[group] = table[group] + values if group in table else values.astype(np.float64)


def _bootstrap(sums: Floats, statistic: Callable[[Floats], Floats]) -> Estimate:
    """A statistic of the total of sums "g m" over patients, with the interval of resampled patients."""
    if len(sums) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums.sum(0)))
        if len(sums) == 1:
            return Estimate(value, float("nan"), float("nan"))
        times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
        drawn = statistic(times @ sums)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))
