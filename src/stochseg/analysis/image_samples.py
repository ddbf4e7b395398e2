"""The samples of one image, from whatever the user passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Samples


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Label maps of one image or volume with their weights and class names.

    labels: "n *space" int64 on the CPU, or uint8 to save memory; weights: "n" float64, sum 1; info: names of the
    classes, default ones if unknown.
    """

    labels: Tensor
    weights: Tensor
    info: DatasetInfo

    @property
    def axes(self) -> int:
        """Number of spatial axes: 2 of an image, 3 of a volume."""
        return self.labels.ndim - 1

    def label_number(self, label: int | str | None) -> int | None:
        """Resolve a class given by number or name; None stands for all foreground."""
        if isinstance(label, str):
            if label not in self.info.names:
                known = ", ".join(self.info.class_names)
                hint = f"known: {known}" if known else "pass info, which has the names, or the number"
                raise UserError(f"label {label!r}: no class of this name; {hint}")
            return self.info.names.index(label)
        last = self.info.num_classes - 1
        if label is not None and not 0 <= label <= last:
            raise UserError(f"label {label}: expected a class from 0 to {last}, or None for all foreground")
        return label

    def label_name(self, label: int | str | None) -> str:
        """Name of a class, or of all foreground for None."""
        number = self.label_number(label)
        if number is None and self.info.num_classes > 2:
            return "foreground"
        return class_names(self.info)[1 if number is None else number]


def class_names(info: DatasetInfo) -> tuple[str, ...]:
    """Names of the classes; two classes without names are background and foreground."""
    return ("background", "foreground") if info.num_classes == 2 and not info.class_names else info.names


def select_image(
    samples: Samples | Tensor | ImageSamples, index: int | None = None, info: DatasetInfo | None = None
) -> ImageSamples:
    """Take the samples of one image or volume; label maps "n h w" or "n d h w" count as n equal samples.

    Label maps without `info` have as many classes as their highest label says, void included.
    """
    if isinstance(samples, ImageSamples):
        return samples if info is None else replace(samples, info=info)
    if isinstance(samples, Tensor):
        return _from_label_maps(samples, info)
    if not isinstance(samples, Samples):
        raise UserError(f'samples: expected Samples or label maps "n *space", got {type(samples).__name__}')
    axes, images = samples.labels.ndim - 2, len(samples.labels)
    if axes not in (2, 3):
        raise UserError(f'samples: expected labels "b n h w" or "b n d h w", got shape {tuple(samples.labels.shape)}')
    if index is None and images > 1:
        raise UserError(f"samples of {images} images: choose one with index=0 to index={images - 1}")
    index = index or 0
    if not 0 <= index < images:
        raise UserError(f"index={index}: expected 0 to {images - 1}, the images of these samples")
    info = info or samples.info
    info = info or DatasetInfo(num_classes=samples.num_classes, image_channels=1, spatial_dims=axes)
    if info.num_classes != samples.num_classes:
        raise UserError(
            f"info has {info.num_classes} classes, the samples have {samples.num_classes}; pass the info of their model"
        )
    weights = samples.weights[index].double().cpu()
    return ImageSamples(samples.labels[index].cpu(), weights / weights.sum(), info)


def _from_label_maps(maps: Tensor, info: DatasetInfo | None) -> ImageSamples:
    expected = (3, 4) if info is None else (1 + info.spatial_dims,)
    if maps.ndim not in expected or maps.numel() == 0 or maps.is_floating_point():
        patterns = " or ".join('"n h w"' if ndim == 3 else '"n d h w"' for ndim in expected)
        raise UserError(
            f"samples: expected Samples or integer label maps {patterns}, got {maps.dtype} of shape "
            f"{tuple(maps.shape)}; take one image of a batch with labels[i]"
        )
    highest = int(maps.max())
    info = info or DatasetInfo(num_classes=max(2, highest + 1), image_channels=1, spatial_dims=maps.ndim - 1)
    if highest >= info.num_classes:
        raise UserError(
            f"samples: expected labels 0..{info.num_classes - 1}, got {highest}; replace void pixels by a class first, "
            "such as 0 for background"
        )
    weights = torch.full((len(maps),), 1 / len(maps), dtype=torch.float64)
    return ImageSamples(maps.long().cpu(), weights, info)
