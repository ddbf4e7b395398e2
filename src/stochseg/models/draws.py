"""What models share that decode a random code into a label map."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def normal(u: Tensor) -> Tensor:
    """Standard normal numbers by inverse CDF. u: float32 uniforms in [0, 1), which are multiples of 2^-24: half a
    step is added, so that neither 0 nor 1 is met. Returns float32."""
    return torch.special.ndtri(u.double() + 2.0**-25).float()


def chunks(total: int, size: tuple[int, int], chunk: int) -> Iterator[slice]:
    """Parts of `total` samples of h×w pixels: `chunk` at once at 128×128 pixels, in proportion at other sizes."""
    step = max(1, chunk * 128 * 128 // (size[0] * size[1]))
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
