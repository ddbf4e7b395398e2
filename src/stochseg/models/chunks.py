"""Sampling in chunks, for models whose samples come as probabilities a pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stochseg.core import NOISES, Noise
from stochseg.errors import unknown_name
from stochseg.models.base import Key, SamplingOptions
from stochseg.types import Samples

Report = Callable[[int], None]
"""To be called with i when the i-th network pass of a chunk is done, counted from 0."""

Part = Callable[[Tensor, Noise, Report], Tensor]
"""(which image each row is of "m", the rows' noise, report) -> probabilities of a sample a row, "m l h w"."""


def check_noise(options: SamplingOptions) -> str:
    """How the samples of an image share randomness, by name."""
    name = options.noise or "independent"
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    return name


def draw_in_chunks(
    part: Part,
    image: Tensor,
    n: int,
    keys: Sequence[Key],
    seed: int,
    options: SamplingOptions,
    *,
    num_classes: int,
    chunk: int,
    evaluations: int = 1,
) -> Samples:
    """n samples an image, each the arg-max of its probabilities, as many at a time as memory allows.

    chunk: samples of 128×128 pixels at once, scaled for other sizes; evaluations: network passes a sample.
    """
    b, _, h, w = image.shape
    make_noise = NOISES[check_noise(options)]
    rows = torch.arange(b, device=image.device).repeat_interleave(n)
    labels = torch.empty(b * n, h, w, dtype=torch.int64, device=image.device)
    size = max(1, chunk * 128 * 128 // (h * w))
    calls = -(-b * n // size) * evaluations
    mean = torch.zeros(b, num_classes, h, w, device=image.device)
    for number, start in enumerate(range(0, b * n, size)):
        stop = min(start + size, b * n)

        def report(i: int, done: int = number * evaluations) -> None:
            if options.progress is not None:
                options.progress(done + i + 1, calls)

        noise = make_noise(keys, n, range(start, stop), image.device)
        probabilities = part(rows[start:stop], noise, report)
        labels[start:stop] = probabilities.argmax(1)
        mean.index_add_(0, rows[start:stop], probabilities / n)
    weights = torch.full((b, n), 1 / n, device=image.device)
    return Samples(labels.view(b, n, h, w), mean, weights, seed, evaluations)
