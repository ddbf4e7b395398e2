"""Checks of label maps that are shared by all formats of data sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError
from stochseg.types import DatasetInfo


def stack_labels(maps: Sequence[Pixels], names: Sequence[str], size: tuple[int, ...]) -> Pixels:
    """Stack label maps as "k h w"; the error for a map of another size gives its name."""
    for array, name in zip(maps, names, strict=True):
        if array.shape != size:
            raise UserError(
                f"{name}: expected a label map of {size[0]}×{size[1]} like its image, got shape {array.shape}"
            )
    return np.stack(maps)


def check_labels(labels: Pixels, info: DatasetInfo, where: str, remedy: str) -> Pixels:
    """Return the label map itself if all its values are declared in `info`."""
    allowed = {*range(info.num_classes), info.ignore}
    wrong = sorted(set(np.unique(labels).tolist()) - allowed)
    if wrong:
        void = f" or {info.ignore} (ignore)" if info.ignore is not None else ""
        raise UserError(f"{where}: expected labels 0..{info.num_classes - 1}{void}, got {wrong[:5]}; {remedy}")
    return labels
