"""The few distinct readings of an image that its samples amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import beta
from torch import Tensor

from stochseg import notebook
from stochseg.analysis.measures import ImageSamples, class_names, one_image
from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou
from stochseg.types import DatasetInfo, Samples

Matrix = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

APART = 0.4
MOST = 8
# Areas that differ by less than this share are told apart by place, not by size.
SAME_SIZE = 0.2


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One reading of the image and how often it was drawn.

    name: what sets it apart from the other readings; probability: weighted share of the samples; interval: where
    that share would settle with more samples (the Jeffreys interval of `level`: it knows how many samples there
    were, not how good the model is); medoid: "h w" int64, the sample nearest to all others of the reading;
    index: its number; members: "m" int64, the samples' numbers; mean_iou: weighted mean IoU between two members,
    1 if there is one; areas: pixels of each foreground class of the medoid, by name.
    """

    name: str
    probability: float
    interval: tuple[float, float]
    level: float
    medoid: Tensor
    index: int
    members: Groups
    mean_iou: float
    areas: dict[str, int]

    def __str__(self) -> str:
        low, high = self.interval
        sizes = ", ".join(f"{name} {pixels} px" for name, pixels in self.areas.items() if pixels)
        return f"{self.name} {self.probability:.0%} ({low:.0%} to {high:.0%})" + (f": {sizes}" if sizes else "")

    __repr__ = __str__


class Hypotheses(list[Hypothesis]):
    """The readings of one image: a list that shows itself a reading a line, and as a table in notebooks."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str | None:
        return notebook.html(self) if self else ""


def hypotheses(
    samples: Samples | Tensor,
    *,
    info: DatasetInfo | None = None,
    which: int | None = None,
    most: int = MOST,
    apart: float = APART,
    level: float = 0.95,
) -> Hypotheses:
    """Group the samples of one image into readings, the most probable first.

    samples: Samples, or label maps "n h w"; info: for the names of the classes; which: the image, if the samples
    are of several; most: no more readings than this (with most=1 an empty map still comes beside it); apart: how
    clearly groups must be apart, from 0 (any difference counts) to 1 (only samples that are alike inside each group are
    split).

    The empty map is a reading of its own. The others are grouped by the distance 1 - IoU: the tree of average
    linkage is cut where the silhouette is largest, then each group by itself in the same way, as long as the
    silhouette exceeds `apart`. If it nowhere does, there is one reading. Samples of weight 0 belong to none.
    """
    if most < 1 or not 0 <= apart < 1 or not 0 < level < 1:
        raise UserError(
            f"hypotheses: expected most >= 1, apart from 0 to below 1 and level between 0 and 1, got most={most}, "
            f"apart={apart}, level={level}"
        )
    chosen = one_image(samples, which, info)
    labels, weights = chosen.labels, chosen.weights.numpy()
    iou = pairwise_iou(labels[None], labels[None], chosen.num_classes)[0].cpu().numpy()
    empty = (labels == 0).flatten(1).all(1).numpy()
    drawn = weights > 0
    shown = np.flatnonzero(~empty & drawn)
    found = [np.flatnonzero(empty & drawn)] if bool((empty & drawn).any()) else []
    if len(shown):
        room = max(1, most - len(found))
        groups = group(1 - iou[np.ix_(shown, shown)], weights[shown], room, apart)
        found += [shown[groups == g] for g in range(groups.max() + 1)]
    found.sort(key=lambda members: (-weights[members].sum(), members[0]))
    medoids = [_medoid(iou, weights, members) for members in found]
    names = _names(chosen, medoids, info)
    return Hypotheses(
        _hypothesis(chosen, iou, members, medoid, name, level, info)
        for members, medoid, name in zip(found, medoids, names, strict=True)
    )


def _hypothesis(
    chosen: ImageSamples,
    iou: Matrix,
    members: Groups,
    medoid: int,
    name: str,
    level: float,
    info: DatasetInfo | None,
) -> Hypothesis:
    weights = chosen.weights.numpy()
    probability = min(1.0, float(weights[members].sum()))
    w = weights[members] / weights[members].sum()
    pairs = 1 - float((w**2).sum())
    inside = 1 - float(w @ (1 - iou[np.ix_(members, members)]) @ w) / pairs if pairs > 1e-12 else 1.0
    names = class_names(chosen.num_classes, info)
    areas = {names[c]: int((chosen.labels[medoid] == c).sum()) for c in range(1, chosen.num_classes)}
    return Hypothesis(
        name,
        probability,
        share_interval(probability, 1 / float((weights**2).sum()), level),
        level,
        chosen.labels[medoid].clone(),
        medoid,
        members,
        inside,
        areas,
    )


def share_interval(share: float, count: float, level: float = 0.95) -> tuple[float, float]:
    """Jeffreys interval of a share found in `count` draws: of the posterior Beta(½ + successes, ½ + failures).

    Weighted draws count as 1 / Σ w². The ends are 0 and 1 where nothing or everything was seen.
    """
    successes, failures = share * count, (1 - share) * count
    tail = (1 - level) / 2
    low, high = beta.ppf([tail, 1 - tail], 0.5 + successes, 0.5 + failures)
    return (0.0 if successes < 1e-9 else float(low)), (1.0 if failures < 1e-9 else float(high))


def _medoid(iou: Matrix, weights: Matrix, members: Groups) -> int:
    """The member with the largest weighted mean IoU to all members; the first of equals."""
    nearness = iou[np.ix_(members, members)] @ weights[members]
    return int(members[np.flatnonzero(nearness >= nearness.max() - 1e-12)[0]])


# --- grouping --------------------------------------------------------------------------------------------


def group(distance: Matrix, weights: Matrix, most: int = MOST, apart: float = APART) -> Groups:
    """Group number of each of n samples, "n", from their distances "n n"."""
    groups = _best_cut(distance, weights, most, apart, 0.0)
    while True:
        # A single cut prefers the coarse view, in which close readings are one: look into each group again. Parts
        # of it are taken to be no tighter than the tightest group: of a few samples, some are close by chance, and
        # one that is not close to the others of its group is no reading yet.
        floor = _tightest(distance, weights, groups)
        finer = np.zeros_like(groups)
        count = 0
        for g in range(groups.max() + 1):
            inside = np.flatnonzero(groups == g)
            parts = _best_cut(distance[np.ix_(inside, inside)], weights[inside], most, apart, floor, least=2)
            finer[inside] = parts + count
            count += parts.max() + 1
        if count == groups.max() + 1 or count > most:
            return groups
        groups = finer


def _best_cut(distance: Matrix, weights: Matrix, most: int, apart: float, floor: float, least: int = 1) -> Groups:
    """The cut of the tree with the largest silhouette above `apart` and `least` samples a group, or all in one."""
    n = len(distance)
    best, score = np.zeros(n, dtype=np.int64), apart
    if n < 2 or distance.max() == 0:
        return best
    tree = linkage(squareform(distance, checks=False), "average")
    for count in range(2, min(most, n) + 1):
        groups = fcluster(tree, count, "maxclust").astype(np.int64) - 1
        # The tree may have no such cut: some of its joints are at one height.
        if groups.max() + 1 < count or np.bincount(groups).min() < least:
            continue
        silhouette = _silhouette(distance, weights, groups, floor)
        if silhouette > score + 1e-9:
            best, score = groups, silhouette
    return best


def _silhouette(distance: Matrix, weights: Matrix, groups: Groups, floor: float) -> float:
    """Weighted mean silhouette (b - a) / max(a, b) of the samples, a no smaller than `floor`.

    a, the mean distance to the others of the own group, is unknown for a sample alone in its group. It is then
    the largest distance within any group: a rare reading drawn once stands out only if it is farther off than
    that. If all are alone nothing is known, and the silhouette is 0.
    """
    samples = np.arange(len(groups))
    together = (groups[:, None] == groups[None]) & ~np.eye(len(groups), dtype=bool)
    if not together.any():
        return 0.0
    alone = ~together.any(1)
    a = (together * distance) @ weights / np.where(alone, 1, together @ weights)
    a = np.maximum(np.where(alone, distance[together].max(), a), floor)
    hit = np.eye(groups.max() + 1)[groups]
    others = distance @ (weights[:, None] * hit) / (weights @ hit)
    others[samples, groups] = np.inf
    b = others.min(1)
    larger = np.maximum(a, b)
    return float(weights @ np.where(larger > 0, (b - a) / np.where(larger > 0, larger, 1), 0) / weights.sum())


def _tightest(distance: Matrix, weights: Matrix, groups: Groups) -> float:
    """The smallest of the groups' weighted mean distances of two different samples; 0 if every sample is alone."""
    pairs = np.outer(weights, weights)
    np.fill_diagonal(pairs, 0)
    hit = np.eye(groups.max() + 1)[groups]
    total, count = (np.einsum("ng,nm,mg->g", hit, values, hit) for values in (pairs * distance, pairs))
    return float((total[count > 0] / count[count > 0]).min()) if (count > 0).any() else 0.0


# --- names -----------------------------------------------------------------------------------------------


def _names(chosen: ImageSamples, medoids: Sequence[int], info: DatasetInfo | None) -> list[str]:
    """What sets each reading apart: "nothing", its rank by size, or what it has more or less than the first."""
    words = class_names(chosen.num_classes, info)
    maps = chosen.labels[list(medoids)].numpy()
    areas = np.stack([(maps == c).sum((1, 2)) for c in range(chosen.num_classes)], 1)
    shown = np.flatnonzero(areas[:, 1:].any(1))
    names = ["nothing"] * len(medoids)
    if len(shown) == 0:
        return names
    varying = [c for c in range(1, chosen.num_classes) if any(_differ(maps, areas, c, shown[0], r) for r in shown)]
    if len(shown) > 1 and len(varying) == 1 and _all_sizes_differ(areas[shown, varying[0]]):
        ranks = _size_words(len(shown))
        for rank, r in enumerate(shown[np.argsort(areas[shown, varying[0]])]):
            names[r] = f"{ranks[rank]} {words[varying[0]]}"
    else:
        names[shown[0]] = ", ".join(words[c] for c in range(1, chosen.num_classes) if areas[shown[0], c])
        for r in shown[1:]:
            names[r] = _difference(maps, areas, shown[0], r, words)
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} ({chr(ord('a') + names[:i].count(name))})" if name in twice else name for i, name in enumerate(names)
    ]


def _size_words(count: int) -> list[str]:
    """Ranks by size: smaller and larger of two; smallest, 2nd smallest, ..., largest of more."""
    if count == 2:
        return ["smaller", "larger"]
    between = [f"{i}{ {2: 'nd', 3: 'rd'}.get(i, 'th') } smallest" for i in range(2, count)]
    return ["smallest", *(["medium"] if count == 3 else between), "largest"]


def _all_sizes_differ(areas: Groups) -> bool:
    """All there, and each larger than the one before by more than `SAME_SIZE`."""
    ordered = np.sort(areas)
    return bool(ordered[0] > 0 and (ordered[1:] > ordered[:-1] * (1 + SAME_SIZE)).all())


def _differ(maps: Groups, areas: Groups, c: int, first: int, other: int) -> bool:
    return bool(areas[first, c] or areas[other, c]) and _class_difference(maps, areas, c, first, other)[1] != ""


def _class_difference(maps: Groups, areas: Groups, c: int, first: int, other: int) -> tuple[float, str]:
    """IoU of one class of two readings, and the pattern of words for its difference, "" if it is about the same."""
    a, b = maps[first] == c, maps[other] == c
    before, after = int(areas[first, c]), int(areas[other, c])
    iou = (a & b).sum() / max(1, (a | b).sum())
    if after == 0:
        return iou, "no {}"
    if before == 0:
        return iou, "with {}"
    if max(before, after) > (1 + SAME_SIZE) * min(before, after):
        return iou, "larger {}" if after > before else "smaller {}"
    return iou, "{} elsewhere" if iou < 0.5 else ""


def _difference(maps: Groups, areas: Groups, first: int, other: int, words: Sequence[str]) -> str:
    """What the reading `other` has more or less than the first, the strongest difference first, at most three."""
    present = [c for c in range(1, len(words)) if areas[first, c] or areas[other, c]]
    found = [(*_class_difference(maps, areas, c, first, other), words[c]) for c in present]
    clear = sorted((iou, pattern.format(word)) for iou, pattern, word in found if pattern)
    if clear:
        return ", ".join(text for _, text in clear[:3])
    return f"other shape of {min(found)[2]}"
