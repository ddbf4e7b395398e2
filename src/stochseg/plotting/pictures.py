"""Images and label maps as colors: the display window of intensities, the palette of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colors
from PIL import Image
from torch import Tensor

from stochseg.types import DatasetInfo, Normalization

FloatArray = npt.NDArray[np.floating[Any]]
LabelArray = npt.NDArray[np.integer[Any]]

BLUE, ORANGE, GREEN, RED = "#1f4e79", "#c2571a", "#4caf6e", "#b3261e"  # of lines and bars
VOID_GRAY = 0.6
MAX_SIDE = 640  # pixels of the longer side of a drawn picture; more would not be visible
MIN_SIDE = 24  # pixels of a close-up
MARGIN = 1.8  # side of a close-up, compared with the region
CLOSE_UP = 0.6  # a region smaller than this fraction of the side of the image is shown close up


# --- intensities -----------------------------------------------------------------------------------------


def to_eight_bits(raw: npt.NDArray[Any]) -> FloatArray:
    """Scale intensities to 0..255 for display.

    Values of 8-bit images (all in 0..255, the largest above 1) are kept. Other values are scaled from the 1st to the
    99th percentile. This is the only display window of the project.

    >>> to_eight_bits(np.array([0, 7, 255])).tolist()
    [0.0, 7.0, 255.0]
    >>> to_eight_bits(np.linspace(-1000, 1000, 201))[[0, 100, 200]].tolist()
    [0.0, 127.5, 255.0]
    """
    values = raw.astype(np.float32)
    if values.min() >= -0.5 and 1 < values.max() <= 255.5:  # normalized images return with rounding errors
        return values.clip(0, 255)
    low, high = np.percentile(values, [1, 99])
    scaled: FloatArray = ((values - low) / max(high - low, 1e-6)).clip(0, 1)
    return scaled * 255


def intensities_to_rgb(raw: npt.NDArray[Any], axes: int = 2) -> FloatArray:
    """Convert intensities "*space" or "*space c" to "*space 3" in 0..1: three channels as colors, fewer as gray.

    axes: of space, 3 for a volume, all of which is scaled alike.
    """
    channels = raw.reshape(*raw.shape[:axes], -1)
    shown = to_eight_bits(channels[..., : 3 if channels.shape[-1] >= 3 else 1]) / 255
    return np.broadcast_to(shown, (*shown.shape[:axes], 3))


def image_to_rgb(image: Tensor, normalization: Normalization) -> FloatArray:
    """Convert a normalized image "c *space" to "*space 3" in 0..1."""
    raw = normalization.inverse(image.float().cpu()).movedim(0, -1).numpy()
    return intensities_to_rgb(raw, image.ndim - 1)


# --- labels ----------------------------------------------------------------------------------------------


def palette(info: DatasetInfo) -> FloatArray:
    """Colors of the classes, "l 3" in 0..1."""
    return np.array([colors.to_rgb(color) for color in info.colors])


def rgb_bytes(color: str) -> tuple[int, int, int]:
    """Convert a color such as "#ff8000" to three numbers in 0..255."""
    r, g, b = (round(255 * value) for value in colors.to_rgb(color))
    return r, g, b


def labels_to_rgb(labels: Tensor, info: DatasetInfo) -> FloatArray:
    """Convert a label map "h w" to colors of the palette, "h w 3" in 0..1; void is gray."""
    index = labels.cpu().numpy()
    valid = (index >= 0) & (index < info.num_classes)
    return np.where(valid[..., None], palette(info)[np.where(valid, index, 0)], VOID_GRAY)


def mean_to_rgb(mean: Tensor, info: DatasetInfo) -> FloatArray:
    """Convert probabilities "l h w" to the mixture of the class colors, "h w 3" in 0..1."""
    mixed: FloatArray = np.einsum("lhw,lc->hwc", mean.float().cpu().numpy(), palette(info))
    return mixed.clip(0, 1)


# --- size and place --------------------------------------------------------------------------------------


def shrink(picture: FloatArray, *maps: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Reduce a picture "h w 3" in 0..1 by averaging, and maps "… h w" of it by subsampling, to at most `MAX_SIDE`."""
    h, w = picture.shape[:2]
    step = -(-max(h, w) // MAX_SIDE)
    if step == 1:
        return picture, *maps
    small = Image.fromarray((picture * 255).round().astype(np.uint8)).reduce(step)
    rows, columns = (np.minimum(np.arange(-(-size // step)) * step + step // 2, size - 1) for size in (h, w))
    return np.asarray(small) / 255, *(part[..., rows[:, None], columns] for part in maps)


def close_up(marked: npt.NDArray[np.bool_], aspect: float = 1.0) -> tuple[slice, slice] | None:
    """Rows and columns of a visually square window around all that is marked in "h w".

    None if nothing is marked or the window would be most of the image. aspect: height of a pixel divided by its width.
    """
    if not marked.any():
        return None
    pixel = np.array([aspect, 1.0]) / min(aspect, 1.0)  # its sides, the shorter one being 1
    ends = [np.flatnonzero(marked.any(axis))[[0, -1]] for axis in (1, 0)]
    extent = max((last - first + 1) * unit for (first, last), unit in zip(ends, pixel, strict=True))
    side = max(MIN_SIDE, MARGIN * extent)
    if side > CLOSE_UP * (pixel * marked.shape).min():
        return None
    window = []
    for (first, last), unit, size in zip(ends, pixel, marked.shape, strict=True):
        length = int(side / unit)
        start = int(np.clip((first + last + 1 - length) // 2, 0, size - length))
        window.append(slice(start, start + length))
    return window[0], window[1]
