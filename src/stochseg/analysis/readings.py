"""The few distinct readings of an image that its samples amount to, each with a probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from stochseg import notebook
from stochseg.analysis.grouping import Groups, Matrix, group
from stochseg.analysis.image_samples import ImageSamples, class_names, select_image
from stochseg.analysis.intervals import jeffreys_interval
from stochseg.analysis.reading_names import name_readings
from stochseg.errors import UserError, is_number
from stochseg.metrics import pairwise_iou
from stochseg.types import DatasetInfo, Samples


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One reading of an image with its probability.

    name: what distinguishes it from the other readings; probability: total weight of its samples; interval: Jeffreys
    interval of the probability at this confidence, which reflects the number of samples, not the quality of the
    model; medoid: "*space" int64, the sample with the largest mean IoU to the others of the reading; medoid_index: its
    number; members: "m" int64, numbers of the samples; mean_iou: weighted mean IoU between two members, 1 for a single
    one; areas: pixels, or voxels of a volume, of each foreground class of the medoid, by name.
    """

    name: str
    probability: float
    interval: tuple[float, float]
    confidence: float
    medoid: Tensor
    medoid_index: int
    members: Groups
    mean_iou: float
    areas: dict[str, int]

    def __str__(self) -> str:
        low, high = self.interval
        unit = "px" if self.medoid.ndim == 2 else "voxels"
        sizes = ", ".join(f"{name} {count} {unit}" for name, count in self.areas.items() if count)
        return f"{self.name} {self.probability:.0%} ({low:.0%} to {high:.0%})" + (f": {sizes}" if sizes else "")

    __repr__ = __str__


class Hypotheses(list[Hypothesis]):
    """A list of the readings of one image, printed one per line and shown as a table in notebooks.

    info: names and colors of the classes, for the table.
    """

    info: DatasetInfo | None = None

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str | None:
        return notebook.html(self) if self else ""


def hypotheses(
    samples: Samples | Tensor | ImageSamples,
    *,
    info: DatasetInfo | None = None,
    index: int | None = None,
    max_readings: int = 8,
    min_separation: float = 0.4,
    confidence: float = 0.95,
) -> Hypotheses:
    """Group the samples of one image or volume into readings, the most probable first.

    A reading of a volume is a label map of the whole volume.

    The empty map is a reading of its own. The others are grouped by the distance 1 - IoU: the tree of average linkage
    is cut where the silhouette is largest, then each group in the same way, while the silhouette exceeds
    `min_separation`. If it never does, there is one reading. Samples of weight 0 belong to none.

    Args:
        samples: `Samples`, or label maps "n h w" or "n d h w", such as the raters of an image.
        info: names of the classes; default: `samples.info`.
        index: the image, required if the samples are of several images.
        max_readings: upper bound of their number (the empty map comes on top of max_readings=1).
        min_separation: how clearly groups must be separated, from 0 (any difference counts) to 1 (only groups of
            identical samples are split).
        confidence: of the intervals of the probabilities.

    Returns:
        The readings, with names, probabilities, intervals and their most typical samples.

    Raises:
        UserError: for options out of range and samples of an unknown form.

    >>> import torch
    >>> import stochseg
    >>> maps = torch.zeros(8, 16, 16, dtype=torch.long)
    >>> maps[3:6, 4:8, 4:8] = maps[6:, 2:12, 2:12] = 1  # three samples empty, three small, two large
    >>> stochseg.hypotheses(maps)
    nothing 38% (12% to 71%)
    smaller foreground 38% (12% to 71%): foreground 16 px
    larger foreground 25% (6% to 59%): foreground 100 px
    """
    numbers = all(is_number(value) for value in (max_readings, min_separation, confidence))
    if not numbers or max_readings < 1 or not 0 <= min_separation < 1 or not 0 < confidence < 1:
        raise UserError(
            f"hypotheses: expected max_readings >= 1, 0 <= min_separation < 1 and 0 < confidence < 1, got "
            f"max_readings={max_readings!r}, min_separation={min_separation!r}, confidence={confidence!r}"
        )
    image = select_image(samples, index, info)
    weights = image.weights.numpy()
    iou = pairwise_iou(image.labels[None], image.labels[None], image.info.num_classes)[0].cpu().numpy()
    readings = _members(image, iou, max_readings, min_separation)
    readings.sort(key=lambda members: (-weights[members].sum(), members[0]))
    medoids = [_medoid(iou, weights, members) for members in readings]
    names = name_readings(image.labels[medoids].numpy(), class_names(image.info))
    found = Hypotheses(
        _hypothesis(image, iou, members, medoid, name, confidence)
        for members, medoid, name in zip(readings, medoids, names, strict=True)
    )
    found.info = image.info
    return found


def _members(image: ImageSamples, iou: Matrix, max_readings: int, min_separation: float) -> list[Groups]:
    """Sample numbers of each reading."""
    weights = image.weights.numpy()
    empty = (image.labels == 0).flatten(1).all(1).numpy()
    blank, marked = (np.flatnonzero(chosen & (weights > 0)) for chosen in (empty, ~empty))
    found = [blank] if len(blank) else []
    if len(marked):
        distance = 1 - iou[np.ix_(marked, marked)]
        groups = group(distance, weights[marked], max(1, max_readings - len(found)), min_separation)
        found += [marked[groups == g] for g in range(groups.max() + 1)]
    return found


def _medoid(iou: Matrix, weights: Matrix, members: Groups) -> int:
    """Member with the largest weighted mean IoU to all members; the first of equals."""
    closeness = iou[np.ix_(members, members)] @ weights[members]
    return int(members[np.flatnonzero(closeness >= closeness.max() - 1e-12)[0]])


def _hypothesis(
    image: ImageSamples, iou: Matrix, members: Groups, medoid: int, name: str, confidence: float
) -> Hypothesis:
    weights = image.weights.numpy()
    probability = min(1.0, float(weights[members].sum()))
    w = weights[members] / weights[members].sum()
    pairs = 1 - float((w**2).sum())
    mean_iou = 1 - float(w @ (1 - iou[np.ix_(members, members)]) @ w) / pairs if pairs > 1e-12 else 1.0
    labels = image.labels[medoid]
    return Hypothesis(
        name,
        probability,
        jeffreys_interval(probability, 1 / float((weights**2).sum()), confidence),
        confidence,
        labels.clone(),
        medoid,
        members,
        mean_iou,
        {each: int((labels == c).sum()) for c, each in enumerate(class_names(image.info)) if c > 0},
    )
