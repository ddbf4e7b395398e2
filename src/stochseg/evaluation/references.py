"""References of a table of scores: what label maps score that were not drawn by a model.

A model that scores worse than "blind" would do better without its image. Each reference is a distribution over label
maps, so that scores of n draws follow from the IoU of its maps alone: the expected GED_n is that of the distribution
plus its diversity divided by n. Only HM-IoU_n, which matches maps, is of one draw of n maps per image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stochseg.core import draw_categorical
from stochseg.data import SegmentationData, has_single_annotations, spread
from stochseg.data.fitting import nearest
from stochseg.evaluation.data_scores import ImageSums, data_metrics, image_sums
from stochseg.metrics import diversity_from_iou, ged_from_iou, hm_iou_from_iou, iou_blocks, without_void
from stochseg.networks.shapes import one_hot
from stochseg.types import Batch, DatasetInfo, Example, Samples

Scores = dict[str, float]
References = Mapping[str, Mapping[str, float]]
"""Metrics by the name of the reference."""

DRAWN = {2: 32, 3: 4}
"""Maps of a distribution that has too many, by the number of spatial dimensions."""
OTHERS = {2: 128, 3: 4}
"""Images whose readings are drawn for another."""
BLIND = "blind"
SEED = 7_919


@dataclass(frozen=True)
class Distribution:
    """Label maps with probabilities.

    maps: "m *space"; weights: "m", sum 1; mean: "l *space", the probabilities of each pixel; complete: whether these
    are all maps of the distribution, or independent draws from it.
    """

    maps: Tensor
    weights: Tensor
    mean: Tensor
    complete: bool = True


@dataclass(frozen=True)
class Rated:
    """An image of the data: its index, its raters "1 k *space" and mask (False = void), and readings "m *space" of
    other images."""

    index: int
    batch: Batch
    others: Tensor
    info: DatasetInfo

    @property
    def frequency(self) -> Tensor:
        """The raters' mean "l *space"; where all are void, background."""
        raters, mask = self.batch.raters[0], self.batch.mask
        votes = one_hot(raters, self.info.num_classes, torch.float64)
        if mask is not None:
            votes = votes * mask[0, :, None]
            votes[:1, 0] += ~mask[0].any(0)
        return votes.sum(0) / votes.sum((0, 1))


def _blind(image: Rated) -> Distribution:
    return _equal(image.others, image.info)


def _empty(image: Rated) -> Distribution:
    return _equal(torch.zeros_like(image.batch.raters[0, :1]), image.info)


def _majority(image: Rated) -> Distribution:
    return _equal(image.frequency.argmax(0)[None], image.info)


def _pixels(image: Rated) -> Distribution:
    mean, count = image.frequency, DRAWN[image.info.spatial_dims]
    u = torch.from_numpy(np.random.default_rng((SEED, image.index)).random((count, *mean.shape[1:])))
    maps = draw_categorical(mean.log().expand(count, *mean.shape), u)
    return Distribution(maps, torch.full((count,), 1 / count, dtype=torch.float64), mean, complete=False)


def _raters(image: Rated) -> Distribution:
    return _equal(image.batch.raters[0], image.info)


REFERENCES: dict[str, tuple[Callable[[Rated], Distribution], str]] = {
    BLIND: (_blind, "label maps of other images, drawn without looking at the image"),
    "empty": (_empty, "background everywhere"),
    "majority": (_majority, "the raters' most frequent label of each pixel, repeated"),
    "pixels": (_pixels, "every pixel drawn by itself with the raters' frequencies"),
    "raters": (_raters, "the raters themselves, drawn with replacement"),
}
"""How the distribution of an image is made, and its meaning."""
REFERENCE_NOTE = "; ".join(f"{name}: {meaning}" for name, (_, meaning) in REFERENCES.items())
OF_SINGLE_ANNOTATIONS = (BLIND, "empty")
"""References of data with one label map per image, of which the others would be copies."""


def score_references(data: SegmentationData, counts: Sequence[int], limit: int | None = None) -> dict[str, Scores]:
    """Score the references on the images that `evaluate` scores with the same limit.

    Args:
        data: images with raters.
        counts: numbers of samples n of GED_n, HM-IoU_n and diversity_n.
        limit: maximum number of images, evenly spaced; default: all.

    Returns:
        Metrics by the name of the reference. Data with one label map per image have the first two alone, and data of
        one image or patient no "blind".

    >>> from stochseg.data import Phantoms
    >>> found = score_references(Phantoms("val", size=16, count=4), [16])
    >>> list(found), found["empty"]["diversity_16"]
    (['blind', 'empty', 'majority', 'pixels', 'raters'], 0.0)
    """
    return {name: scores for name, (scores, _) in score_references_by_image(data, counts, limit).items()}


def score_references_by_image(
    data: SegmentationData, counts: Sequence[int], limit: int | None = None
) -> dict[str, tuple[Scores, dict[str, Scores]]]:
    """`score_references`, with the metrics of each image by its id, for intervals."""
    names = OF_SINGLE_ANNOTATIONS if has_single_annotations(data) else tuple(REFERENCES)
    rows: dict[str, dict[str, Scores]] = {name: {} for name in names}
    sums: dict[str, list[ImageSums]] = {name: [] for name in names}
    pool = _readings(data)
    for i in spread(len(data), len(data) if limit is None else limit):
        example = data[i].rated(data.info.ignore)
        if len(example.raters) == 0:
            continue
        image = Rated(i, Batch.collate([example], data.info.ignore), _others(pool, example), data.info)
        for name in names:
            if name == BLIND and len(image.others) == 0:
                continue
            distribution = REFERENCES[name][0](image)
            rows[name][example.id] = _scores(distribution, image, counts)
            samples = _samples(distribution)
            sums[name].append(image_sums({len(distribution.maps): samples}, example, data.info, fused=False))
    return {
        name: (_means([*found.values()]) | data_metrics(sums[name], data.info), found)
        for name, found in rows.items()
        if found
    }


def worse_than_blind(metrics: Mapping[str, float], references: References, n: int) -> bool:
    """Whether the GED of n samples is worse than that of readings of other images."""
    key = f"ged_{n}"
    return BLIND in references and key in metrics and metrics[key] > references[BLIND].get(key, float("inf"))


def _readings(data: SegmentationData) -> list[tuple[str, Tensor]]:
    """One reading of each of some images, with the image's group; void is background."""
    found, ignore = [], data.info.ignore
    for number, i in enumerate(spread(len(data), OTHERS[data.info.spatial_dims] + 1)):
        example = data[i].rated(ignore)
        if len(example.raters) > 0:
            reading = example.raters[number % len(example.raters)]
            found.append((_group(example), reading if ignore is None else reading.masked_fill(reading == ignore, 0)))
    return found


def _others(pool: Sequence[tuple[str, Tensor]], example: Example) -> Tensor:
    """The readings of other groups than the example's, at its size, "m *space"."""
    size = tuple(example.raters.shape[1:])
    maps = [nearest(reading, size) for group, reading in pool if group != _group(example)]
    return torch.stack(maps) if maps else example.raters[:0]


def _group(example: Example) -> str:
    return example.group or example.id


def _means(rows: Sequence[Scores]) -> Scores:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def _equal(maps: Tensor, info: DatasetInfo) -> Distribution:
    mean = one_hot(maps, info.num_classes, torch.float64).mean(0)
    return Distribution(maps, torch.full((len(maps),), 1 / len(maps), dtype=torch.float64), mean)


def _scores(distribution: Distribution, image: Rated, counts: Sequence[int]) -> Scores:
    """The expected scores of n independent draws, for each n of `counts`."""
    maps, raters = without_void(distribution.maps[None], image.batch.raters, image.batch.mask)
    blocks, weights = iou_blocks(maps, raters, image.info.num_classes), distribution.weights[None]
    drawn = not distribution.complete
    ged = ged_from_iou(*blocks, weights=weights, unbiased=drawn).item()
    diversity = diversity_from_iou(blocks.samples_samples, weights=weights, unbiased=drawn).item()
    scores = {"ged_unbiased": ged, "diversity_unbiased": diversity}
    rng = np.random.default_rng((SEED, image.index, 1))
    for n in counts:
        picked = torch.from_numpy(rng.choice(len(weights[0]), n, p=weights[0].numpy()))
        scores[f"ged_{n}"] = ged + diversity / n
        scores[f"hm_iou_{n}"] = hm_iou_from_iou(blocks.samples_raters[:, picked]).item()
        scores[f"diversity_{n}"] = diversity * (1 - 1 / n)
    return scores


def _samples(distribution: Distribution) -> Samples:
    return Samples(distribution.maps[None], distribution.mean[None], distribution.weights[None], SEED)
