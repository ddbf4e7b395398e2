"""Tiling: large images and volumes in overlapping windows, whose probabilities are blended.

The windows are blended at every call of the network, not at the end: a sampler sees one denoiser of the whole image
and draws for the whole image. The noise thus does not depend on the tiling, and the predictions of two windows for a
pixel are averaged before anything is drawn, so that there are no seams. Volumes have windows along all three axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from types import EllipsisType
from typing import TypeAlias

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.memory import release_freed_memory
from stochseg.networks.denoisers import Choose, Condition, Denoiser
from stochseg.networks.shelf import Shelf

ALIGN = 32
"""Windows start at rows and columns that are multiples of this, so that a network whose stride divides it sees the same
cells. Slices have no such cells."""
MIN_OVERLAP = 8
MIN_SLICE_OVERLAP = 2
TILE_SLICES, SLICE_OVERLAP = 16, 4
"""Slices per window of a volume, and those that neighbors share, unless a caller states them."""
KEPT_BYTES = 2**28
"""Encoded windows beyond this are kept in a temporary file."""

Sizes: TypeAlias = int | Sequence[int]
"""Pixels along rows and columns, or one number per axis, slices first."""


@dataclass(frozen=True)
class Window:
    """Part of an image with its weights along each axis; the weights of all windows sum to 1 at each pixel."""

    parts: tuple[slice, ...]
    weights: tuple[Tensor, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return this part of "... *space"."""
        index: tuple[EllipsisType | slice, ...] = (..., *self.parts)
        return x[index]

    @property
    def weight(self) -> Tensor:
        """The weight of each pixel, "*space"; made when it is used, because there are many windows."""
        return reduce(lambda a, b: a[..., None] * b, self.weights)


@dataclass(frozen=True)
class Tiling:
    """Size of the windows, and what neighbors share, per axis.

    Args:
        tile: Pixels per side of a window, and slices if it is of a volume.
        overlap: Pixels and slices that neighboring windows share.

    Raises:
        UserError: If windows of this size cannot overlap like this.
    """

    tile: tuple[int, ...]
    overlap: tuple[int, ...]

    def __post_init__(self) -> None:
        *slices, rows, columns = zip(self.tile, self.overlap, strict=True)
        if any(overlap < MIN_OVERLAP or tile - overlap < ALIGN for tile, overlap in (rows, columns)):
            raise UserError(
                f"tiling: expected an overlap of at least {MIN_OVERLAP} pixels and a tile at least {ALIGN} pixels "
                f"larger, got tile {rows[0]} and overlap {rows[1]}"
            )
        for tile, overlap in slices:
            if overlap < MIN_SLICE_OVERLAP or tile <= overlap:
                raise UserError(
                    f"tiling: expected an overlap of at least {MIN_SLICE_OVERLAP} slices and a tile of more slices, "
                    f"got tile {tile} and overlap {overlap}"
                )

    @classmethod
    def of(cls, tile: Sizes, overlap: Sizes, dims: int) -> Tiling:
        """Return the tiling of images (dims 2) or volumes (3); one number is for rows and columns.

        >>> Tiling.of(288, 64, 3)
        Tiling(tile=(16, 288, 288), overlap=(4, 64, 64))
        """
        return cls(_per_axis(tile, TILE_SLICES, dims), _per_axis(overlap, SLICE_OVERLAP, dims))

    def is_exceeded(self, size: Sequence[int]) -> bool:
        """Whether an image of this size needs several windows."""
        return any(length > tile for length, tile in zip(size, self.tile, strict=True))

    def windows(self, size: Sequence[int]) -> list[Window]:
        """Return windows that cover an image; neighbors share at least the overlap.

        A window has the size of a tile, or up to ALIGN - 1 rows and columns more at the far ends.
        """
        aligned = (*[1] * (len(size) - 2), ALIGN, ALIGN)
        spans = [_spans(*each) for each in zip(size, self.tile, self.overlap, aligned, strict=True)]
        return [Window(*zip(*axes, strict=True)) for axes in product(*spans)]


def _per_axis(value: Sizes, slices: int, dims: int) -> tuple[int, ...]:
    sizes = (*[slices] * (dims - 2), value, value) if isinstance(value, int) else tuple(value)
    if len(sizes) != dims:
        raise UserError(f"tiling: expected one number, or {dims}, one per axis, got {sizes}")
    return sizes


def _spans(length: int, tile: int, overlap: int, align: int) -> list[tuple[slice, Tensor]]:
    """Evenly spaced windows along one axis with their weights."""
    if length <= tile:
        return [(slice(0, length), torch.ones(length))]
    last, most = (length - tile) // align, (tile - overlap) // align  # in units of `align`
    count = -(-last // most)
    starts = [i * last // count * align for i in range(count)]
    spans = [*(slice(start, start + tile) for start in starts), slice(last * align, length)]
    weights = [_ramps(span, length, overlap) for span in spans]
    total = torch.zeros(length)
    for span, weight in zip(spans, weights, strict=True):
        total[span] += weight
    return [(span, weight / total[span]) for span, weight in zip(spans, weights, strict=True)]


def _ramps(span: slice, length: int, overlap: int) -> Tensor:
    """0 at a cut edge, where a network lacks context, rising to 1 within the overlap; 1 at the edges of the image."""
    here = torch.arange(span.start, span.stop) + 0.5
    margin = overlap / 4
    weight = torch.ones(len(here))
    for distance, cut in ((here - span.start, span.start > 0), (span.stop - here, span.stop < length)):
        if cut:
            weight = torch.minimum(weight, ((distance - margin) / (overlap - 2 * margin)).clamp(0, 1))
    return weight


def blended(network: Callable[[Tensor], Tensor], image: Tensor, tiling: Tiling) -> Tensor:
    """Apply a network by windows and blend their probabilities.

    Args:
        network: Function from "b c *space" to logits "b l *space".
        image: Images "b c *space".
        tiling: Size and overlap of the windows; smaller images are not tiled.

    Returns:
        Logits "b l *space".

    Example:
        >>> blended(torch.nn.Conv2d(1, 2, 3, padding=1), torch.zeros(1, 1, 100, 40), Tiling.of(64, 16, 2)).shape
        torch.Size([1, 2, 100, 40])
    """
    size = tuple(image.shape[2:])
    if not tiling.is_exceeded(size):
        return network(image)
    layout = tiling.windows(size)
    return _blend(((window, network(window(image)).float().softmax(1)) for window in layout), size)


def _blend(parts: Iterable[tuple[Window, Tensor]], size: tuple[int, ...]) -> Tensor:
    """Return the logarithm "... *space" of the weighted sum of the windows' probabilities."""
    total: Tensor | None = None
    for window, p in parts:
        total = p.new_zeros(*p.shape[: -len(size)], *size) if total is None else total
        window(total).add_(p * window.weight.to(p.device))
    assert total is not None
    release_freed_memory()  # the network of a window leaves half a gigabyte, next to the maps of the whole image
    return total.clamp_(min=torch.finfo(total.dtype).tiny).log_()


@dataclass(frozen=True)
class TiledCondition(Condition):
    """Conditions of the windows. Rows are selected when a window is used, because there are many windows."""

    layout: tuple[Window, ...] = ()
    parts: Shelf | None = None
    rows: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> TiledCondition:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def part(self, number: int) -> Condition:
        """Return the condition of one window for the selected rows."""
        assert self.parts is not None
        size = tuple(part.stop - part.start for part in self.layout[number].parts)
        whole = Condition(self.parts[number], size)
        return whole if self.rows is None else whole[self.rows]


class Tiled(Denoiser):
    """Denoiser that applies another one by windows to images larger than a tile, and as is to smaller ones.

    Note: normalization and attention see one window at a time, so that another tiling gives slightly different
    probabilities, unlike the noise, which does not depend on it. The weights of a mixture are averaged over the
    windows: a sample uses one component in all of them.

    Args:
        inner: The denoiser; its weights are shared.
        tiling: Size and overlap of the windows.
    """

    def __init__(self, inner: Denoiser, tiling: Tiling):
        super().__init__()
        self.inner, self.tiling, self.components = inner, tiling, inner.components

    def encode(self, image: Tensor) -> Condition:
        size = tuple(image.shape[2:])
        if not self.tiling.is_exceeded(size):
            return self.inner.encode(image)
        layout, parts = tuple(self.tiling.windows(size)), Shelf(KEPT_BYTES)
        for window in layout:
            parts.append(self.inner.encode(window(image)).tensors)
        return TiledCondition((), size, layout, parts)

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        if not isinstance(condition, TiledCondition):
            return self.inner.propose(x_t.long(), t, condition)
        weights: list[Tensor] = []

        def parts() -> Iterator[tuple[Window, Tensor]]:
            for number, window in enumerate(condition.layout):
                log_weight, logits = self.inner.propose(window(x_t).long(), t, condition.part(number))
                weights.append(log_weight.float().exp() / len(condition.layout))
                yield window, logits.float().softmax(2)

        logits = _blend(parts(), condition.size)
        return sum(weights, torch.zeros_like(weights[0])).log(), logits

    def propose_chosen(self, x_t: Tensor, t: Tensor, condition: Condition, choose: Choose) -> tuple[Tensor, Tensor]:
        """Choose the component before the windows are computed, if those of all components are too large to hold.

        A component of a window that is chosen at random is distributed as one of the averaged weights.
        """
        if not isinstance(condition, TiledCondition) or self.components == 1 or self.holds(condition.size):
            return self.propose(x_t, t, condition)
        layout, rows = condition.layout, torch.arange(len(x_t), device=x_t.device)
        place = choose(torch.full((len(x_t), len(layout)), -math.log(len(layout)), device=x_t.device))
        log_weight = torch.cat(
            [self._log_weight(int(place[i]), x_t[i : i + 1], t, condition[rows[i : i + 1]]) for i in rows]
        )
        component = choose(log_weight)
        parts = (
            (window, self.inner.propose(window(x_t).long(), t, condition.part(number))[1][rows, component][:, None])
            for number, window in enumerate(layout)
        )
        logits = _blend(((window, chosen.float().softmax(2)) for window, chosen in parts), condition.size)
        return log_weight.gather(1, component[:, None]).mul(0), logits  # 0, or NaN as a sign of broken weights

    def _log_weight(self, number: int, x_t: Tensor, t: Tensor, condition: TiledCondition) -> Tensor:
        """Log-weights "1 m" of the components in one window of one row."""
        return self.inner.propose(condition.layout[number](x_t).long(), t[:1], condition.part(number))[0]
