"""Images larger than a network should see at once: overlapping windows, whose probabilities are blended.

The windows are joined at every call of the network, not at the end: samplers see one denoiser of the whole image, and
draw for the whole image. Noise is thus the same however the image is cut, and what two windows say of a pixel that
both see is averaged before anything is drawn, so that there are no seams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.networks.denoisers import Condition, Denoiser

ALIGN = 32
"""Windows begin at multiples of this, so that a network whose stride divides it sees the same cells."""


@dataclass(frozen=True)
class Window:
    """A part of an image, and how much it counts at each of its pixels: the weights of all windows sum to 1."""

    rows: slice
    columns: slice
    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The part of "... h w"."""
        return x[..., self.rows, self.columns]


def windows(height: int, width: int, tile: int, overlap: int) -> list[Window]:
    """Windows of `tile` pixels a side, or up to ALIGN - 1 more at the far ends, that cover the image and share at least
    `overlap` pixels with each neighbor."""
    vertical, horizontal = (_spans(length, tile, overlap) for length in (height, width))
    return [Window(y, x, a[:, None] * b) for (y, a), (x, b) in product(vertical, horizontal)]


def check_tiling(tile: int, overlap: int) -> None:
    if overlap < 8 or tile - overlap < ALIGN:
        raise UserError(
            f"tiles of {tile} pixels that share {overlap}: expected an overlap of 8 or more, and a tile larger than "
            f"that by at least {ALIGN}"
        )


def _spans(length: int, tile: int, overlap: int) -> list[tuple[slice, Tensor]]:
    """Windows along one axis, evenly spread, and their weights "length of the window"."""
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
    """0 at a cut edge, where a network lacks context, rising to 1 within the overlap; 1 at the image's own edges."""
    here = torch.arange(span.start, span.stop) + 0.5
    margin = overlap / 4
    weight = torch.ones(len(here))
    for distance, cut in ((here - span.start, span.start > 0), (span.stop - here, span.stop < length)):
        if cut:
            weight = torch.minimum(weight, ((distance - margin) / (overlap - 2 * margin)).clamp(0, 1))
    return weight


def blended(network: Callable[[Tensor], Tensor], image: Tensor, tile: int, overlap: int) -> Tensor:
    """Logits "b l h w" of an image "b c h w" by windows; those of `network` itself if the image is one."""
    if max(image.shape[-2:]) <= tile:
        return network(image)
    out: Tensor | None = None
    for window in windows(*image.shape[-2:], tile, overlap):
        p = network(window(image)).float().softmax(1) * window.weight.to(image.device)
        out = p.new_zeros(*p.shape[:2], *image.shape[-2:]) if out is None else out
        window(out).add_(p)
    assert out is not None
    return _log(out)


def _log(p: Tensor) -> Tensor:
    return p.clamp_(min=torch.finfo(p.dtype).tiny).log_()


@dataclass(frozen=True)
class TiledCondition(Condition):
    """Conditions of the windows; rows are chosen when a window is used, because there are many of them."""

    layout: tuple[Window, ...] = ()
    parts: tuple[Condition, ...] = ()
    rows: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> TiledCondition:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def part(self, number: int) -> Condition:
        return self.parts[number] if self.rows is None else self.parts[number][self.rows]


class Tiled(Denoiser):
    """A denoiser that sees images larger than `tile` in windows, at every call, and others as they are.

    Note: normalization and attention look at a whole window, so that another layout gives slightly other
    probabilities, other than the noise, which does not depend on it. A mixture's shares are averaged over the windows:
    a sample takes one component in all of them.
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
        share: Tensor | None = None
        p: Tensor | None = None
        for number, window in enumerate(condition.layout):
            log_share, logits = self.inner.propose(window(x_t), t, condition.part(number))
            if share is None or p is None:
                share = torch.zeros_like(log_share, dtype=torch.float32)
                p = logits.new_zeros(*logits.shape[:3], *condition.size, dtype=torch.float32)
            share += log_share.float().exp() / len(condition.layout)
            window(p).add_(logits.float().softmax(2) * window.weight.to(p.device))
        assert share is not None
        assert p is not None
        return share.log(), _log(p)
