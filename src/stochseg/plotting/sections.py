"""Three planes of a volume as images of their own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stochseg.types import DatasetInfo, Example


def sections(example: Example, info: DatasetInfo) -> list[Example]:
    """Cut a volume through the center of what its raters have marked, or of the volume if that is nothing.

    The first plane is a slice, the second is cut along a row, the third along a column: axial, coronal and sagittal for
    axial slices. The last slice is on top of the second and third, which are named by the row and the column.

    Args:
        example: a volume with its raters.
        info: the void label.

    Returns:
        Three images, each with its own spacing.
    """
    marked = ((example.raters > 0) & (example.raters != info.ignore)).sum(0)
    spacing = example.spacing or (1.0, 1.0, 1.0)
    planes = []
    for axis in range(3):
        index = _middle(marked.movedim(axis, 0).flatten(1).sum(1))
        image, raters = (maps.select(axis + 1, index) for maps in (example.image, example.raters))
        if axis > 0:
            image, raters = image.flip(-2), raters.flip(-2)
        down, across = (mm for i, mm in enumerate(spacing) if i != axis)
        id = (example.id, f"row {index}", f"column {index}")[axis]
        planes.append(replace(example, image=image, raters=raters, spacing=(down, across), id=id))
    return planes


def _middle(counts: Tensor) -> int:
    """Index that divides counts in halves; it has a count itself, unless there is none."""
    if not bool(counts.any()):
        return len(counts) // 2
    return int((counts.cumsum(0) >= torch.ceil(counts.sum() / 2)).nonzero()[0])
