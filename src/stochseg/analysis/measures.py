"""Measurements with their uncertainty: one number a sample, and what the samples say about it together."""

from __future__ import annotations

import html
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stochseg.analysis.regions import Mask, area, components, equivalent_diameter, longest_diameter, perimeter
from stochseg.errors import UserError, unknown_name
from stochseg.types import DatasetInfo, Samples

Values = npt.NDArray[np.float64]
Measure = Callable[[npt.NDArray[np.int64]], float]
"""A measure of the user's own: a label map "h w" to a number."""

COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


# --- one image of what the user passed -------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSamples:
    """Label maps of one image: labels "n h w" int64 on the CPU; weights "n" float64, sum 1."""

    labels: Tensor
    weights: Tensor
    num_classes: int


def one_image(samples: Samples | Tensor, which: int | None = None, info: DatasetInfo | None = None) -> ImageSamples:
    """The samples of one image. A tensor "n h w" of label maps, such as the raters', counts as n equal samples;
    without `info` every value above 0 is a class, void too."""
    if isinstance(samples, Tensor):
        if samples.ndim != 3 or samples.numel() == 0 or samples.is_floating_point():
            raise UserError(
                f'samples: expected Samples or integer label maps "n h w", got {samples.dtype} of shape '
                f"{tuple(samples.shape)}; take one image of a batch with labels[i]"
            )
        labels = samples.long().cpu()
        if info is not None and int(labels.max()) >= info.num_classes:
            raise UserError(
                f"samples: expected labels 0..{info.num_classes - 1}, got {int(labels.max())}; give void pixels a "
                "label first, such as 0 for background"
            )
        classes = info.num_classes if info else max(2, int(labels.max()) + 1)
        return ImageSamples(labels, torch.full((len(labels),), 1 / len(labels), dtype=torch.float64), classes)
    if not isinstance(samples, Samples):
        raise UserError(f'samples: expected Samples or label maps "n h w", got {type(samples).__name__}')
    images = len(samples.labels)
    if which is None and images > 1:
        raise UserError(f"samples of {images} images: choose one of them with which=0 to which={images - 1}")
    which = which or 0
    if not 0 <= which < images:
        raise UserError(f"which={which}: expected 0 to {images - 1}, the images of these samples")
    if info is not None and info.num_classes != samples.num_classes:
        raise UserError(
            f"info has {info.num_classes} classes, the samples {samples.num_classes}; pass the info of their model"
        )
    weights = samples.weights[which].double().cpu()
    return ImageSamples(samples.labels[which].cpu(), weights / weights.sum(), samples.num_classes)


@dataclass(frozen=True)
class _Kind:
    of: Callable[[Mask, tuple[float, float]], float]
    dimension: int

    def unit(self, known: bool) -> str:
        if self.dimension == 0:
            return ""
        return ("mm" if known else "px") + {1: "", 2: "²", 3: "³"}[self.dimension]


MEASURES = {
    "area": _Kind(area, 2),
    "equivalent diameter": _Kind(equivalent_diameter, 1),
    "longest diameter": _Kind(longest_diameter, 1),
    "perimeter": _Kind(perimeter, 1),
    "components": _Kind(components, 0),
}
VOLUME = "volume"


# --- the result ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measurement:
    """One number a sample. values: "n" float64; weights: "n", sum 1; unit: "mm", "px²", ... or "" if it has none."""

    name: str
    values: Values
    weights: Values
    unit: str = ""

    @property
    def mean(self) -> float:
        return float(self.weights @ self.values)

    @property
    def std(self) -> float:
        """Standard deviation of the weighted samples, without a correction for n."""
        return math.sqrt(float(self.weights @ (self.values - self.mean) ** 2))

    def quantile(self, q: float) -> float:
        """The smallest value that at least the share q of the samples does not exceed: always a value that occurs."""
        if not 0 <= q <= 1:
            raise UserError(f"quantile: expected q from 0 to 1, got {q}")
        order = np.argsort(self.values, kind="stable")
        order = order[self.weights[order] > 0]
        reached = np.cumsum(self.weights[order])
        # Sums of weights miss q by rounding; a sample must not be skipped for that.
        index = int(np.searchsorted(reached, q - 1e-9))
        return float(self.values[order[min(index, len(order) - 1)]])

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The central interval, from quantile (1 - level) / 2 to quantile (1 + level) / 2, ends included.

        Where values repeat it holds more than `level`: no interval of whole values holds less than asked.
        """
        _check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def probability(self, comparison: str, threshold: float) -> float:
        """Share of the samples for which `value comparison threshold` holds, e.g. probability(">", 6.0)."""
        if comparison not in COMPARISONS:
            raise unknown_name("comparison", comparison, COMPARISONS)
        return min(1.0, float(self.weights[COMPARISONS[comparison](self.values, threshold)].sum()))

    def __repr__(self) -> str:
        low, high = self.interval()
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.name}: {self.mean:.4g}{unit}, std {self.std:.3g}, 90% {low:.4g} to {high:.4g}{unit} "
            f"({len(self.values)} samples)"
        )

    def _repr_html_(self) -> str:
        return measurements_html([self])


def measurements_html(rows: Sequence[Measurement]) -> str:
    """A table for the notebook, one row a measurement."""
    head = "".join(f"<th>{title}</th>" for title in ("", "mean", "std", "median", "90% of samples", ""))
    body = []
    for row in rows:
        low, high = row.interval()
        numbers = (f"{row.mean:.4g}", f"{row.std:.3g}", f"{row.quantile(0.5):.4g}", f"{low:.4g} – {high:.4g}", row.unit)
        cells = "".join(f"<td>{cell}</td>" for cell in numbers)
        body.append(f'<tr><th style="text-align:left">{html.escape(row.name)}</th>{cells}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


class Measurements(list[Measurement]):
    """Several measurements of one image: a list that shows itself as one table."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return measurements_html(self)


# --- measuring -------------------------------------------------------------------------------------------


def measure(
    samples: Samples | Tensor,
    what: str | Measure = "area",
    *,
    label: int | str | None = None,
    spacing: Sequence[float] | None = None,
    which: int | None = None,
    info: DatasetInfo | None = None,
    name: str | None = None,
) -> Measurement:
    """Measure every sample of one image.

    samples: Samples, or label maps "n h w" such as the raters' own; what: "area", "equivalent diameter", "longest
    diameter", "perimeter", "components", "volume", or a function of a label map "h w" (numpy) that gives a number;
    label: one class by number or, with info, by name (None: all foreground); spacing: millimeters a pixel
    (row, column), without it the unit is the pixel; which: the image, if the samples are of several.

    "volume" takes the images of the samples for the slices of one series, in order, and spacing (slice, row,
    column). Sample i of every slice makes volume i: slices that were drawn independently of each other average
    out, and the spread is then too small for a series whose slices are right or wrong together.
    """
    if what == VOLUME:
        return _volume(samples, label, spacing, which, info, name)
    if not callable(what) and what not in MEASURES:
        raise unknown_name("measure", what, [*MEASURES, VOLUME])
    chosen = one_image(samples, which, info)
    if callable(what):
        if label is not None or spacing is not None:
            raise UserError(
                "measure: a function gets the whole label map; label and spacing serve the named measures only, "
                "so use them inside the function"
            )
        name = name or getattr(what, "__name__", "measure")
        values = [_number(what(labels), name, i) for i, labels in enumerate(chosen.labels.numpy())]
        return Measurement(name, np.array(values), chosen.weights.numpy())
    mm = _spacing(spacing, ("row", "column"))
    kind = MEASURES[what]
    values = [kind.of(region, mm or (1.0, 1.0)) for region in _regions(chosen, label, info)]
    title = name or f"{what} of {_label_name(label, chosen.num_classes, info)}"
    return Measurement(title, np.array(values), chosen.weights.numpy(), kind.unit(mm is not None))


def measurements(
    samples: Samples | Tensor,
    *,
    spacing: Sequence[float] | None = None,
    which: int | None = None,
    info: DatasetInfo | None = None,
) -> Measurements:
    """Every named measure of every foreground class of one image."""
    classes = one_image(samples, which, info).num_classes
    return Measurements(
        measure(samples, what, label=label, spacing=spacing, which=which, info=info)
        for label in range(1, classes)
        for what in MEASURES
    )


def _volume(
    samples: Samples | Tensor,
    label: int | str | None,
    spacing: Sequence[float] | None,
    which: int | None,
    info: DatasetInfo | None,
    name: str | None,
) -> Measurement:
    if not isinstance(samples, Samples) or which is not None:
        raise UserError(
            'measure "volume": expected Samples of all slices of a series, "b n h w", and no `which`; '
            "stack the slices along b"
        )
    slices = [one_image(samples, z, info) for z in range(len(samples.labels))]
    weights = slices[0].weights
    if any(not torch.allclose(part.weights, weights, atol=1e-6) for part in slices):
        raise UserError(
            'measure "volume": sample i must weigh the same in every slice; draw samples with equal weights'
        )
    mm = _spacing(spacing, ("slice", "row", "column"))
    voxel = math.prod(mm) if mm else 1.0
    values = sum(_regions(part, label, info).sum((1, 2)) * voxel for part in slices)
    title = name or f"volume of {_label_name(label, samples.num_classes, info)}"
    return Measurement(title, np.asarray(values, dtype=np.float64), weights.numpy(), "mm³" if mm else "px³")


def _regions(chosen: ImageSamples, label: int | str | None, info: DatasetInfo | None) -> Mask:
    """Where each sample has the class, "n h w" bool."""
    labels = chosen.labels.numpy()
    number = _label_number(label, chosen.num_classes, info)
    return labels > 0 if number is None else labels == number


def _label_number(label: int | str | None, classes: int, info: DatasetInfo | None) -> int | None:
    if isinstance(label, str):
        names = info.names if info else ()
        if label not in names:
            hint = f"known: {', '.join(names)}" if names else "pass info, which has the names, or the number"
            raise UserError(f"label {label!r}: no class of this name; {hint}")
        return names.index(label)
    if label is not None and not 0 <= label < classes:
        raise UserError(f"label {label}: expected a class from 0 to {classes - 1}, or None for all foreground")
    return label


def _label_name(label: int | str | None, classes: int, info: DatasetInfo | None) -> str:
    number = _label_number(label, classes, info)
    if number is None:
        number = 1 if classes == 2 and info and info.class_names else None
    return "foreground" if number is None else class_names(classes, info)[number]


def class_names(classes: int, info: DatasetInfo | None) -> tuple[str, ...]:
    """The data set's names, or plain ones."""
    if info is not None and info.class_names:
        return info.class_names
    return ("background", "foreground") if classes == 2 else tuple(f"class {i}" for i in range(classes))


def _spacing(spacing: Sequence[float] | None, axes: tuple[str, ...]) -> Any:
    if spacing is None:
        return None
    mm = tuple(float(s) for s in spacing)
    if len(mm) != len(axes) or not all(math.isfinite(s) and s > 0 for s in mm):
        raise UserError(f"spacing: expected {len(axes)} positive numbers, millimeters ({', '.join(axes)}), got {mm}")
    return mm


def _number(value: Any, name: str, sample: int) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise UserError(f"{name}: sample {sample} measures {number}; return a finite number, also for an empty map")
    return number


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"level: expected a share between 0 and 1, such as 0.9, got {level}")


# --- do the intervals hold what they promise? ------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """Shares of the raters' values inside the samples' intervals; `randomized` should be `level`.

    randomized: ties at the ends of the interval count in part, see `coverage`; closed: inside
    `Measurement.interval`, ends included, which of repeated values holds more than `level`; raters: how many.
    """

    level: float
    randomized: float
    closed: float
    raters: int

    def __str__(self) -> str:
        return (
            f"{self.level:.0%} intervals hold {self.randomized:.1%} of {self.raters} raters' values "
            f"({self.closed:.1%} with all ties)"
        )


def coverage(samples: Sequence[Measurement], raters: Sequence[Measurement], level: float = 0.9) -> Coverage:
    """Compare the samples' central intervals with what raters measured, image by image.

    A measurement of label maps has few distinct values, and an interval that ends on one of them holds all that
    is tied with it: perfect samples would seem too cautious. So a rater's value is ranked among the n samples
    with its ties in random order, and covered if the rank falls into the middle `level` of the n + 1 ranks. What
    is returned is the expectation over that order, nothing is drawn. If rater and samples come from one
    distribution it is `level` at every n, whether the distribution is discrete or not. Weighted samples count
    as 1 / Σ w² of them.
    """
    _check_level(level)
    if len(samples) != len(raters) or not samples:
        raise UserError(
            f"coverage: expected one measurement of the raters for each of the samples, got {len(raters)} and "
            f"{len(samples)}"
        )
    for ours, theirs in zip(samples, raters, strict=True):
        if ours.unit != theirs.unit:
            raise UserError(f"coverage: one unit is needed, got {ours.unit!r} and {theirs.unit!r}; give both spacing")
    shares = np.concatenate([_covered(s, r.values, level) for s, r in zip(samples, raters, strict=True)])
    closed = np.concatenate([_inside(s, r.values, level) for s, r in zip(samples, raters, strict=True)])
    return Coverage(level, float(shares.mean()), float(closed.mean()), len(shares))


def _covered(samples: Measurement, values: Values, level: float) -> Values:
    """Probability that the rank of each value, ties in random order, lies in the middle `level` of all ranks."""
    count = 1 / float((samples.weights**2).sum())
    below = np.array([samples.probability("<", v) for v in values]) * count
    tied = np.array([samples.probability("==", v) for v in values]) * count
    low, high = below / (count + 1), (below + tied + 1) / (count + 1)
    overlap = np.minimum(high, (1 + level) / 2) - np.maximum(low, (1 - level) / 2)
    return np.clip(overlap, 0, None) / (high - low)


def _inside(samples: Measurement, values: Values, level: float) -> Values:
    low, high = samples.interval(level)
    return ((values >= low) & (values <= high)).astype(np.float64)
