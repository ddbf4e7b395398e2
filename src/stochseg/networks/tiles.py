"""Tiling: large images in overlapping windows, whose probabilities are blended.

The windows are blended at every call of the network, not at the end: a sampler sees one denoiser of the whole image
and draws for the whole image. The noise thus does not depend on the tiling, and the predictions of two windows for a
pixel are averaged before anything is drawn, so that there are no seams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.networks.denoisers import Condition, Denoiser

ALIGN = 32
"""Windows start at multiples of this, so that a network whose stride divides it sees the same cells."""
MIN_OVERLAP = 8


@dataclass(frozen=True)
class Window:
    """Part of an image with its weight at each of its pixels; the weights of all windows sum to 1."""

    rows: slice
    columns: slice
    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return this part of "... h w"."""
        return x[..., self.rows, self.columns]


def windows(height: int, width: int, tile: int, overlap: int) -> list[Window]:
    """Return windows that cover the image; neighbors share at least `overlap` pixels.

    A window has `tile` pixels per side, or up to ALIGN - 1 more at the far ends.
    """
    vertical, horizontal = (_spans(length, tile, overlap) for length in (height, width))
    return [Window(y, x, a[:, None] * b) for (y, a), (x, b) in product(vertical, horizontal)]


def check_tiling(tile: int, overlap: int) -> None:
    """Raise UserError if windows of `tile` pixels per side cannot overlap by `overlap` pixels."""
    if overlap < MIN_OVERLAP or tile - overlap < ALIGN:
        raise UserError(
            f"tiling: expected an overlap of at least {MIN_OVERLAP} pixels and a tile at least {ALIGN} pixels larger, "
            f"got tile {tile} and overlap {overlap}"
        )


def _spans(length: int, tile: int, overlap: int) -> list[tuple[slice, Tensor]]:
    """Evenly spaced windows along one axis with their weights."""
    if length <= tile:
        return [(slice(0, length), torch.ones(length))]
    last, most = (length - tile) // ALIGN, (tile - overlap) // ALIGN  # in units of ALIGN
    count = -(-last // most)
    starts = [i * last // count * ALIGN for i in range(count)]
    spans = [*(slice(start, start + tile) for start in starts), slice(last * ALIGN, length)]
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


def blended(network: Callable[[Tensor], Tensor], image: Tensor, tile: int, overlap: int) -> Tensor:
    """Apply a network by windows and blend their probabilities.

    Args:
        network: Function from "b c h w" to logits "b l h w".
        image: Images "b c h w".
        tile: Pixels per side of a window; smaller images are not tiled.
        overlap: Pixels that neighboring windows share.

    Returns:
        Logits "b l h w".

    Example:
        >>> blended(torch.nn.Conv2d(1, 2, 3, padding=1), torch.zeros(1, 1, 100, 40), 64, 16).shape
        torch.Size([1, 2, 100, 40])
    """
    h, w = image.shape[-2:]
    if max(h, w) <= tile:
        return network(image)
    layout = windows(h, w, tile, overlap)
    return _blend(((window, network(window(image)).float().softmax(1)) for window in layout), (h, w))


def _blend(parts: Iterable[tuple[Window, Tensor]], size: tuple[int, ...]) -> Tensor:
    """Return the logarithm "... h w" of the weighted sum of the windows' probabilities."""
    total: Tensor | None = None
    for window, p in parts:
        total = p.new_zeros(*p.shape[:-2], *size) if total is None else total
        window(total).add_(p * window.weight.to(p.device))
    assert total is not None
    return total.clamp_(min=torch.finfo(total.dtype).tiny).log_()


@dataclass(frozen=True)
class TiledCondition(Condition):
    """Conditions of the windows. Rows are selected when a window is used, because there are many windows."""

    layout: tuple[Window, ...] = ()
    parts: tuple[Condition, ...] = ()
    rows: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> TiledCondition:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def part(self, number: int) -> Condition:
        """Return the condition of one window for the selected rows."""
        return self.parts[number] if self.rows is None else self.parts[number][self.rows]


class Tiled(Denoiser):
    """Denoiser that applies another one by windows to images larger than `tile`, and as is to smaller ones.

    Note: normalization and attention see one window at a time, so that another tiling gives slightly different
    probabilities, unlike the noise, which does not depend on it. The weights of a mixture are averaged over the
    windows: a sample uses one component in all of them.

    Args:
        inner: The denoiser; its weights are shared.
        tile: Pixels per side of a window.
        overlap: Pixels that neighboring windows share.
    """

    def __init__(self, inner: Denoiser, tile: int, overlap: int):
        super().__init__()
        check_tiling(tile, overlap)
        self.inner, self.tile, self.overlap = inner, tile, overlap

    def encode(self, image: Tensor) -> Condition:
        h, w = image.shape[-2:]
        if max(h, w) <= self.tile:
            return self.inner.encode(image)
        layout = tuple(windows(h, w, self.tile, self.overlap))
        return TiledCondition((), (h, w), layout, tuple(self.inner.encode(window(image)) for window in layout))

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        if not isinstance(condition, TiledCondition):
            return self.inner.propose(x_t, t, condition)
        weights: list[Tensor] = []

        def parts() -> Iterator[tuple[Window, Tensor]]:
            for number, window in enumerate(condition.layout):
                log_weight, logits = self.inner.propose(window(x_t), t, condition.part(number))
                weights.append(log_weight.float().exp() / len(condition.layout))
                yield window, logits.float().softmax(2)

        logits = _blend(parts(), condition.size)
        return sum(weights, torch.zeros_like(weights[0])).log(), logits
