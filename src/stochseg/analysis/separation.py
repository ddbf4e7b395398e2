"""Separate lesions in the samples of an image or volume, each with its own samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, select_image
from stochseg.analysis.intervals import jeffreys_interval
from stochseg.analysis.measures import measure
from stochseg.analysis.questions import Answer
from stochseg.analysis.regions import Mask, label_components
from stochseg.types import DatasetInfo, Samples


@dataclass(frozen=True, eq=False)
class Lesion:
    """One lesion: what the samples say about one place.

    Attributes:
        name: "lesion 1", "lesion 2", …, by falling mean size.
        presence: probability that there is anything, with its 95% interval for this number of samples.
        window: the part of the image that contains it in every sample, one slice per axis.
        center: voxel of the lesion that is closest to its mean position, one number per axis.
        samples: label maps inside the window, without other lesions and other classes; pass them to `measure`,
            `measurements` or `hypotheses`.
    """

    name: str
    presence: Answer
    window: tuple[slice, ...]
    center: tuple[int, ...]
    samples: ImageSamples

    def __repr__(self) -> str:
        return f"{self.name} at {self.center}: {self.presence}"


def lesions(
    samples: Samples | Tensor | ImageSamples,
    *,
    label: int | str | None = None,
    index: int | None = None,
    info: DatasetInfo | None = None,
) -> list[Lesion]:
    """Separate the lesions of one image or volume, the largest first.

    A lesion is a connected component of all that any sample marks; pixels that share a corner are connected. What a
    sample marks inside it, in one piece or several or none, is that sample's version of the lesion. So the lesions have
    no overlap, their sizes add up to the whole in every sample, and nothing has to be matched between samples. If one
    sample joins two lesions, they count as one.

    Args:
        samples: `Samples`, or label maps "n h w" or "n d h w".
        label: the class, by number or by name; None takes all foreground.
        index: the image, required if the samples are of several images.
        info: names of the classes; default: `samples.info`.

    Returns:
        The lesions; none if no sample marks anything. Samples of weight 0 do not count.

    Raises:
        UserError: for unknown classes, and samples of an unknown form.

    >>> import stochseg, torch
    >>> maps = torch.zeros(4, 6, 16, 16, dtype=torch.long)
    >>> maps[:, 1:4, 2:6, 2:6] = 1  # all samples mark one lesion, one of them another
    >>> maps[0, 4:, 10:12, 10:12] = 1
    >>> for lesion in stochseg.lesions(maps):
    ...     print(lesion, stochseg.measure(lesion.samples, "volume").mean)
    lesion 1 at (2, 3, 3): 100% (56% – 100%) 48.0
    lesion 2 at (4, 10, 10): 25% (3% – 72%) 2.0
    """
    image = select_image(samples, index, info)
    number = image.label_number(label)
    union = np.zeros(image.labels.shape[1:], dtype=bool)
    for labels in image.labels[image.weights > 0].numpy():  # one by one, because volumes are large
        union |= labels > 0 if number is None else labels == number
    parts, _ = label_components(union)
    boxes = ndimage.find_objects(parts)
    found = [_lesion(image, number, box, parts[box] == part) for part, box in enumerate(boxes, start=1)]
    found.sort(key=lambda lesion: -measure(lesion.samples).mean)
    return [replace(lesion, name=f"lesion {i}") for i, lesion in enumerate(found, start=1)]


def _lesion(image: ImageSamples, number: int | None, box: tuple[slice, ...], inside: Mask) -> Lesion:
    labels = image.labels[(slice(None), *box)] * torch.from_numpy(inside)
    if number is not None:
        labels = labels * (labels == number)
    own = replace(image, labels=labels)
    probability = measure(own).probability(">", 0)
    density = torch.einsum("n,n...->...", image.weights, (labels > 0).double()).numpy()
    voxels = np.argwhere(density > 0)
    middle = density[density > 0] @ voxels / density.sum()
    nearest = voxels[np.square(voxels - middle).sum(1).argmin()]
    center = tuple(int(side.start + place) for side, place in zip(box, nearest, strict=True))
    interval = jeffreys_interval(probability, 1 / float((image.weights**2).sum()))
    return Lesion("", Answer(probability, interval), box, center, own)
