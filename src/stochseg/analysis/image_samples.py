"""The samples of one image, from whatever the user passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Samples


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Label maps of one image with their weights and class names.

    labels: "n h w" int64 on the CPU; weights: "n" float64, sum 1; info: names of the classes, if known.
    """

    labels: Tensor
    weights: Tensor
    num_classes: int
    info: DatasetInfo | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        return class_names(self.num_classes, self.info)

    def label_number(self, label: int | str | None) -> int | None:
        """Resolve a class given by number or name; None stands for all foreground."""
        if isinstance(label, str):
            names = self.info.names if self.info else ()
            if label not in names:
                hint = f"known: {', '.join(names)}" if names else "pass info, which has the names, or the number"
                raise UserError(f"label {label!r}: no class of this name; {hint}")
            return names.index(label)
        if label is not None and not 0 <= label < self.num_classes:
            raise UserError(
                f"label {label}: expected a class from 0 to {self.num_classes - 1}, or None for all foreground"
            )
        return label

    def label_name(self, label: int | str | None) -> str:
        """Name of a class, or of all foreground for None."""
        number = self.label_number(label)
        if number is None and self.num_classes == 2:
            number = 1
        return "foreground" if number is None else self.class_names[number]


def class_names(num_classes: int, info: DatasetInfo | None) -> tuple[str, ...]:
    """Names of the classes from `info`, or generic ones."""
    if info is not None and info.class_names:
        return info.class_names
    return ("background", "foreground") if num_classes == 2 else tuple(f"class {i}" for i in range(num_classes))


def select_image(samples: Samples | Tensor, index: int | None = None, info: DatasetInfo | None = None) -> ImageSamples:
    """Take the samples of one image.

    Args:
        samples: `Samples`, or label maps "n h w" of one image (such as its raters), which count as n equal samples.
        index: the image, required if the samples are of several images.
        info: names and number of the classes; default: `samples.info`. Label maps without it have as many classes
            as their highest label says, void included.

    Raises:
        UserError: for other types and shapes, a missing or wrong index, and labels or classes that `info` does not
            have.
    """
    if isinstance(samples, Tensor):
        return _from_label_maps(samples, info)
    if not isinstance(samples, Samples):
        raise UserError(f'samples: expected Samples or label maps "n h w", got {type(samples).__name__}')
    images = len(samples.labels)
    if index is None and images > 1:
        raise UserError(f"samples of {images} images: choose one with index=0 to index={images - 1}")
    index = index or 0
    if not 0 <= index < images:
        raise UserError(f"index={index}: expected 0 to {images - 1}, the images of these samples")
    info = info or samples.info
    if info is not None and info.num_classes != samples.num_classes:
        raise UserError(
            f"info has {info.num_classes} classes, the samples have {samples.num_classes}; pass the info of their model"
        )
    weights = samples.weights[index].double().cpu()
    return ImageSamples(samples.labels[index].cpu(), weights / weights.sum(), samples.num_classes, info)


def _from_label_maps(maps: Tensor, info: DatasetInfo | None) -> ImageSamples:
    if maps.ndim != 3 or maps.numel() == 0 or maps.is_floating_point():
        raise UserError(
            f'samples: expected Samples or integer label maps "n h w", got {maps.dtype} of shape '
            f"{tuple(maps.shape)}; take one image of a batch with labels[i]"
        )
    labels = maps.long().cpu()
    if info is not None and int(labels.max()) >= info.num_classes:
        raise UserError(
            f"samples: expected labels 0..{info.num_classes - 1}, got {int(labels.max())}; replace void pixels by a "
            "class first, such as 0 for background"
        )
    num_classes = info.num_classes if info else max(2, int(labels.max()) + 1)
    weights = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    return ImageSamples(labels, weights, num_classes, info)
