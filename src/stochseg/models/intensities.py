"""Intensities and sizes that a model was trained on, and the one check that an image has such ones.

A network answers anything: floats in 0..1 for gray levels in 0..255, Hounsfield units or a no-data value give label
maps that look like "nothing found". What an image of the training data can look like is measured when training starts
(`with_intensities`) and saved with the model (`DatasetInfo.intensities` and `min_size`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Intensities, Normalization

MEASURED_IMAGES = 64
EIGHT_BITS = 255.0
OVERSHOOT = 0.1
"""Fraction of 0..255 by which resampled 8-bit images may leave it."""
FRACTIONS = 20.0
"""Values in -1..1 with a fractional part are of another scale if the training data reach this value."""
MIN_SPAN = 0.1
"""Fraction of the smallest span of a training image below which an image is of another scale."""
BRIGHTER = 1 / 3
"""Fraction of that span by which the lowest value of an image may exceed those of all training images."""
INVERTED = 0.1
"""Fraction of the range of an image by which its median must leave those of the training images to look inverted."""
MEDIAN_VALUES = 2**16
"""Values, evenly spaced, whose median is taken."""
MIN_SIDE = 0.25
"""Fraction of the smallest side of a training image below which an image shows something else."""
FAR = 20.0
"""Standard deviations that count as far for a model whose training intensities are unknown."""
ANYWAY = "to sample it anyway, pass allow_unusual_input=True (--allow-unusual-input)"


def with_intensities(data: SegmentationData, patch: tuple[int, ...] | None = None) -> DatasetInfo:
    """The facts about training data, with intensities and smallest size of `MEASURED_IMAGES` evenly spaced images.

    A model that is trained on parts of `patch` voxels has seen images of that size.
    """
    sizes: list[tuple[int, ...]] = [] if patch is None else [patch[-2:]]

    def images() -> Iterator[Tensor]:  # one at a time: they may be large
        for i in spread(len(data), MEASURED_IMAGES):
            image = data[i].image
            sizes.append(tuple(image.shape[-2:]))
            yield image

    found = measure_intensities(images(), data.info.normalization)
    smallest = tuple(min(sides) for sides in zip(*sizes, strict=True))
    return data.info.model_copy(update={"intensities": found, "min_size": smallest or None})


def measure_intensities(images: Iterable[Tensor], normalization: Normalization) -> Intensities | None:
    """Measure the raw intensities of normalized images "c *space"; None without images that are not constant."""
    ends, medians = list[Tensor](), list[float]()
    for image in images:
        raw = normalization.inverse(image).flatten(1)
        ends.append(torch.stack(torch.aminmax(raw, dim=1)))
        if bool(raw.amax() > raw.amin()):
            medians.append(_relative_median(raw, raw.amin(), raw.amax()))
    if not ends:
        return None
    low, high = torch.stack(ends, dim=1).double()  # "images channels" each
    span = (high - low).masked_fill(high <= low, torch.inf).amin(0)
    if not bool(torch.isfinite(span).all()):
        return None
    found = {"lowest": low.amin(0), "highest": high.amax(0), "darkest": low.amax(0), "span": span}
    values = {key: [round(v, 4) for v in values.tolist()] for key, values in found.items()}
    return Intensities.parse({**values, "medians": [round(min(medians), 4), round(max(medians), 4)]})


def check_intensities(image: Tensor, info: DatasetInfo, *, normalized: bool = False) -> None:
    """Raise a UserError for an image that `describe_unusual` describes; arguments as there."""
    problem = describe_unusual(image, info, normalized=normalized)
    if problem:
        raise UserError(f"image: {problem}. If that is right, {ANYWAY}")


def describe_unusual(image: Tensor, info: DatasetInfo, *, normalized: bool = False) -> str:
    """Describe why an image cannot be one of the data that the model was trained on, with the remedy; "" if it can.

    Args:
        image: normalized "c *space", of one image or of a volume.
        info: facts about the training data. Without `intensities`, the normalization tells what to expect.
        normalized: whether the user passed normalized values, not raw ones.
    """
    if info.fit is None and info.min_size is not None and _is_tiny(image.shape[-2:], info.min_size):
        (height, width), (rows, columns) = image.shape[-2:], info.min_size
        return (
            f"its {height}×{width} pixels are far fewer than those of the training images, which are at least "
            f"{rows}×{columns}; crop or resize it as they were"
        )
    flat = image.detach().flatten(1)[:, None]  # "c 1 p"; copies only of the ends: a volume may be large
    low, high = (
        info.normalization.inverse(end.double().cpu()).flatten() for end in torch.aminmax(flat, dim=2, keepdim=True)
    )
    fractional = float(torch.maximum(-low, high).max()) <= 1.01 and _is_fractional(info.normalization.inverse(flat))
    known = info.intensities or _assumed(info.normalization, normalized)
    problem = _find_problem(low, high, fractional, known)
    if not problem and known.medians is not None and bool(high.max() > low.min()):
        few = info.normalization.inverse(_few(flat[:, 0])[:, None]).double().cpu()
        problem = _find_inversion(_relative_median(few, low.min(), high.max()), known.medians)
    tensor = ". A tensor is taken as normalized: pass raw intensities as a numpy array"
    return f"its intensities {problem}{tensor * normalized}{_scan_hint(info)}" if problem else ""


def _scan_hint(info: DatasetInfo) -> str:
    """How to segment a scan as it is, with a model that declares how to prepare it."""
    if info.preparation is None or info.preparation.scale == "none":
        return ""
    units = f" in {info.preparation.units}" if info.preparation.units else ""
    return f". For a scan{units}, pass a point in the object: `stochseg predict … --at x,y,z` crops and scales it"


def _is_tiny(size: Sequence[int], smallest: Sequence[int]) -> bool:
    return any(side < MIN_SIDE * least for side, least in zip(size, smallest, strict=True))


def _find_problem(low: Tensor, high: Tensor, fractional: bool, known: Intensities) -> str:
    """What is wrong with intensities from low "c" to high "c", and the remedy; "" if nothing is."""
    lowest, highest, darkest, span = (
        torch.tensor(values, dtype=torch.float64) for values in (known.lowest, known.highest, known.darkest, known.span)
    )
    eight_bits = float(lowest.min()) >= 0 and 1 < float(highest.max()) <= EIGHT_BITS
    ends = (torch.tensor(0.0), torch.tensor(EIGHT_BITS)) if eight_bits else (lowest, highest)
    room = (ends[1] - ends[0]) * (OVERSHOOT if eight_bits else 1.0)
    shown, trained, remedy = _range(low, high), _range(lowest, highest), _scale_remedy(known)
    if bool((low < ends[0] - room).any() or (high > ends[1] + room).any()):
        return f"{shown} are far outside those of the training images, {trained}; {remedy}"
    if float(highest.max()) > FRACTIONS and fractional:
        to_scale = "multiply it by 255" if eight_bits and float(low.min()) >= 0 else "undo the scaling"
        return f"{shown} are fractions, but those of the training images are {trained}; {to_scale}"
    # Over all channels, a training image starts at min(darkest) or below and spans at least max(span).
    start, width, least = float(low.min()), float(high.max() - low.min()), float(span.max())
    if 0 < width < MIN_SPAN * least:  # a constant image, such as an empty slice, has no scale
        return f"{shown} span {width:.3g}, but those of each training image at least {least:.5g}; {remedy}"
    if width > 0 and start > float(darkest.min()) + BRIGHTER * least:
        return f"{shown} start too high: each training image has values of {darkest.min():.5g} or below; {remedy}"
    return ""


def _relative_median(raw: Tensor, low: Tensor, high: Tensor) -> float:
    """Median of values "c p" in 0 (low) to 1 (high)."""
    return float((_few(raw).median() - low) / (high - low))


def _few(values: Tensor) -> Tensor:
    """Evenly spaced values per channel."""
    return values[:, :: max(1, values.shape[1] // MEDIAN_VALUES)]


def _find_inversion(median: float, known: tuple[float, float]) -> str:
    """What is wrong with an image of this relative median, if its negative has one like those of training images."""
    least, most = known
    as_is, negative = (least - INVERTED <= value <= most + INVERTED for value in (median, 1 - median))
    if as_is or not negative:
        return ""
    return (
        f"look inverted: their median is at {median:.0%} of their range, and at {least:.0%} to {most:.0%} in the "
        "training images; exchange black and white"
    )


def _assumed(normalization: Normalization, normalized: bool) -> Intensities:
    """Guess intensities from a normalization: 8-bit gray levels for the default one, else a few deviations."""
    if normalization == Normalization() and not normalized:  # normalized tensors need not come from 8-bit images
        return Intensities(lowest=(0.0,), highest=(EIGHT_BITS,), darkest=(EIGHT_BITS,), span=(0.15 * EIGHT_BITS,))
    mean, std = torch.tensor(normalization.mean), torch.tensor(normalization.std)
    # A value may lie as far outside of the range as the range is wide, so FAR deviations from the mean.
    low, high = ((mean + sign * FAR / 3 * std).tolist() for sign in (-1, 1))
    return Intensities(lowest=low, highest=high, darkest=high, span=(0.3 * std).tolist())


def _is_fractional(raw: Tensor) -> bool:
    return float((raw - raw.round()).abs().max()) > 1e-3  # more than the rounding errors of a black image


def _scale_remedy(known: Intensities) -> str:
    ends = zip(known.lowest, known.highest, known.span, strict=True)
    if all(high - low == span for low, high, span in ends):  # such as LIDC slices, each of which was scaled
        low, high = f"{min(known.lowest):g}", f"{max(known.highest):g}"
        return (
            f"each training image spans all of {low}..{high}: replace no-data values, crop yours as they were cropped, "
            f"and map the minimum and the maximum of the crop to {low} and {high}"
        )
    return "convert it to the units of the training images (window, scale), and replace no-data values"


def _range(low: Tensor, high: Tensor) -> str:
    return f"{float(low.min()):.5g}..{float(high.max()):.5g}"
