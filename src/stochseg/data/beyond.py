"""Slices beyond the ends of volumes that were cut at the first and the last slice of their object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import binary_dilation, gaussian_filter
from scipy.signal import correlate

from stochseg.data.protocol import SegmentationData, space_of
from stochseg.errors import UserError
from stochseg.types import Example

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

MARGIN = 3
"""Pixels around the outlines that are replaced too, and as many around these that the replacement must resemble."""
FEATHER = 1.0
"""Standard deviation in pixels of the soft edge of the replacement."""


class BeyondEnds:
    """Every volume of a split twice: as it is, and longer at both ends by slices without an object.

    Volumes such as nodules of LIDC end with the first and last slice that a rater has marked. A model that has seen no
    others goes on with the outline where the object has ended. The added slices are the volume's own next to the end,
    mirrored, with all that a rater has marked replaced by the most similar part of the same slice; their label maps are
    background.

    Args:
        data: The split of volumes.
        slices: Number of slices to add at each end.

    Raises:
        UserError: The data are images, or nothing is to be added.

    Example:
        >>> from stochseg.data import BeyondEnds, PhantomVolumes
        >>> data = BeyondEnds(PhantomVolumes("train", size=32, slices=6, count=2), 3)
        >>> len(data), tuple(data[1].image.shape), tuple(data[3].image.shape)
        (4, (1, 6, 32, 32), (1, 12, 32, 32))
    """

    def __init__(self, data: SegmentationData, slices: int) -> None:
        if data.info.spatial_dims != 3 or slices < 1:
            raise UserError(
                f"slices beyond the ends: expected volumes and at least 1 slice, got {data.info.spatial_dims}-D data "
                f"and {slices}"
            )
        self.data, self.slices, self.info = data, slices, data.info

    def __len__(self) -> int:
        return 2 * len(self.data)

    def space(self, index: int) -> tuple[int, ...]:
        """Return the size (d, h, w) of a volume."""
        longer, index = divmod(index, len(self.data))
        depth, *plane = space_of(self.data, index)
        return (depth + 2 * self.slices * longer, *plane)

    def __getitem__(self, index: int) -> Example:
        longer, index = divmod(index, len(self.data))
        example = self.data[index]
        return _longer(example, self.slices) if longer else example


def _longer(example: Example, slices: int) -> Example:
    depth = example.image.shape[1]
    places = np.pad(np.arange(depth), slices, mode="symmetric")
    image, raters = example.image[:, places].clone(), example.raters[:, places].clone()
    marked = (example.raters > 0).any(0).numpy()
    beyond = [*range(slices), *range(slices + depth, 2 * slices + depth)]
    raters[:, beyond] = 0
    for i in beyond:
        image[:, i] = torch.from_numpy(without_object(image[:, i].numpy(), marked[places[i]]))
    return replace(example, image=image, raters=raters)


def without_object(image: Floats, marked: Bools) -> Floats:
    """Replace the marked pixels of a slice by the part of the same slice that fits best to what surrounds them.

    Args:
        image: "c h w".
        marked: "h w".

    Returns:
        "c h w". Where no other part fits better than that, the marked pixels get the median of those around them.
    """
    hidden = binary_dilation(marked, iterations=MARGIN)
    if not hidden.any():
        return image
    around = binary_dilation(hidden, iterations=MARGIN) & ~hidden
    soft = np.maximum(gaussian_filter(hidden.astype(np.float32), FEATHER), hidden)
    mixed: Floats = image + soft * (_replacement(image, hidden, around) - image)
    return mixed.astype(np.float32)


def _replacement(image: Floats, hidden: Bools, around: Bools) -> Floats:
    """A slice "c h w" whose values in `hidden` come from elsewhere in the slice.

    From where the pixels around it resemble `around` best, and the pixels inside are near their typical level.
    """
    rows, columns = np.nonzero(hidden | around)
    corner = rows.min(), columns.min()
    box = np.s_[corner[0] : rows.max() + 1, corner[1] : columns.max() + 1]
    inside, border = hidden[box] * 1.0, around[box] * 1.0

    def everywhere(values: npt.NDArray[Any], mask: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """For all places of the box in the slice: the sum of the values times the mask."""
        return np.asarray(correlate(values, mask, mode="valid", method="fft"), dtype=np.float64)

    levels = np.median(image[:, around], axis=1) if around.any() else image.min((1, 2))
    error = np.where(everywhere(hidden * 1.0, inside + border) < 0.5, 0.0, np.inf)
    weight = border.sum() / inside.sum()
    for channel, level in zip(image.astype(np.float64), levels, strict=True):
        values = channel - level
        error += everywhere(values**2, border + weight * inside) - 2 * everywhere(values, border * values[box])
    y, x = np.unravel_index(error.argmin(), error.shape)
    if error[y, x] >= 0:  # that of the level alone
        return np.broadcast_to(levels[:, None, None], image.shape)
    return np.roll(image, (corner[0] - y, corner[1] - x), (1, 2))
