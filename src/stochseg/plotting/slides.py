"""Small pictures of the slices of a volume, for a slider: outlines of all samples next to the mean probability."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from stochseg.analysis.regions import Mask
from stochseg.plotting.output import data_uri
from stochseg.plotting.pictures import FloatArray, LabelArray, palette
from stochseg.types import DatasetInfo

SIDE = 288  # pixels of the longer side of a picture
GAP = 8  # pixels between two pictures
QUALITY = 82  # of a JPEG


def slide(
    picture: FloatArray,
    maps: LabelArray,
    weights: npt.NDArray[np.float64],
    foreground: FloatArray,
    info: DatasetInfo,
    aspect: float = 1.0,
) -> str:
    """One slice as a data URI: the outlines of all samples, and the mean probability of foreground, side by side.

    picture: "h w 3" in 0..1; maps: "n h w"; foreground: "h w"; aspect: height of a pixel divided by its width.
    """
    step = -(-max(picture.shape[:2]) // SIDE)
    picture, maps, foreground = picture[::step, ::step], maps[:, ::step, ::step], foreground[::step, ::step]
    zoom = max(1, SIDE // max(picture.shape[:2]))
    left = _enlarged(picture, zoom).copy()
    for label in range(info.num_classes - 1, 0, -1):  # an inner region is drawn over the ring around it
        opacity = _outlines(maps == label, weights, zoom)[..., None]
        left = left * (1 - opacity) + palette(info)[label] * opacity
    right = _enlarged(colormaps["viridis"](foreground)[..., :3], zoom)
    both = np.concatenate([left, np.ones((len(left), GAP, 3)), right], axis=1)
    image = Image.fromarray((255 * both.clip(0, 1)).round().astype(np.uint8))
    if aspect != 1.0:
        image = image.resize((image.width, max(1, round(image.height * aspect))), Image.Resampling.BILINEAR)
    return _smallest_uri(image)


def _outlines(regions: Mask, weights: npt.NDArray[np.float64], zoom: int) -> FloatArray:
    """Opacity of the outlines of regions "n h w", enlarged; frequent ones are stronger."""
    shape = regions.shape[1:]
    unique: dict[bytes, float] = {}  # identical regions are drawn once, more opaque
    for region, weight in zip(regions, weights, strict=True):
        if region.any():
            unique[region.tobytes()] = unique.get(region.tobytes(), 0.0) + float(weight)
    faintest = min(0.8, max(0.3, 4 / max(1, len(unique))))
    clear = np.ones([zoom * side for side in shape], dtype=np.float32)
    for content, weight in unique.items():
        region = np.frombuffer(content, dtype=bool).reshape(shape)
        clear[_border(_enlarged(region, zoom))] *= 1 - max(faintest, min(1.0, weight) ** 0.5)
    return 1 - clear


def _border(region: Mask) -> Mask:
    """Pixels of a region with a neighbor outside, or outside the picture."""
    padded = np.pad(region, 1)
    inner = padded[2:, 1:-1] & padded[:-2, 1:-1] & padded[1:-1, 2:] & padded[1:-1, :-2]
    return np.asarray(region & ~inner)


def _enlarged(values: npt.NDArray[Any], zoom: int) -> npt.NDArray[Any]:
    return values.repeat(zoom, axis=0).repeat(zoom, axis=1)


def _smallest_uri(image: Image.Image) -> str:
    """The smaller of a PNG with a palette and a JPEG."""
    options: Sequence[tuple[str, Image.Image, dict[str, Any]]] = (
        ("png", image.quantize(128), {"optimize": True}),
        ("jpeg", image, {"quality": QUALITY, "optimize": True}),
    )
    found = []
    for kind, each, settings in options:
        buffer = io.BytesIO()
        each.save(buffer, kind.upper(), **settings)
        found.append((buffer.getvalue(), kind))
    return data_uri(*min(found, key=lambda one: len(one[0])))
