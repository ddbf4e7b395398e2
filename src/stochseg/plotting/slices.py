"""The slice of a volume that stands for it in a small picture: the one on which its label maps disagree most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from stochseg.types import Example, Samples


def disputed_slice(maps: Tensor) -> int:
    """Slice on which label maps "n d h w" differ at most voxels; the one with most foreground if they are equal."""
    score = (maps != maps[:1]).any(0).flatten(1).sum(1)
    if not bool(score.any()):
        score = (maps > 0).any(0).flatten(1).sum(1)
    return int(score.argmax())


def slice_of_example(example: Example, index: int) -> Example:
    """One slice of a volume as an image."""
    spacing = example.spacing and example.spacing[1:]
    return replace(example, image=example.image[:, index], raters=example.raters[:, index], spacing=spacing)


def slice_of_samples(samples: Samples, index: int) -> Samples:
    """Samples "b n d h w" of one slice."""
    window = samples.window and samples.window[1:]
    return replace(samples, labels=samples.labels[:, :, index], mean=samples.mean[:, :, index], window=window)


def as_images(rows: Sequence[tuple[Example, Samples]]) -> list[tuple[Example, Samples]]:
    """Replace volumes by the slice on which their samples disagree most."""
    return [_as_image(*row) if row[0].image.ndim == 4 else row for row in rows]


def _as_image(example: Example, out: Samples) -> tuple[Example, Samples]:
    index = disputed_slice(out.labels[0].cpu())
    return slice_of_example(example, index), slice_of_samples(out, index)
