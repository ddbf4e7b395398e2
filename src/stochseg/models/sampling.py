"""Sampling in chunks, so that memory stays bounded however many samples are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


def check_noise(options: SamplingOptions, default: str = "independent") -> str:
    """How the samples of an image share randomness, by name."""
    name = options.noise or default
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    return name


def chunks(total: int, size: tuple[int, int], chunk: int) -> Iterator[slice]:
    """Parts of `total` samples of h×w pixels: `chunk` at once at 128×128 pixels, in proportion at other sizes."""
    step = max(1, chunk * 128 * 128 // (size[0] * size[1]))
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


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
    parts = list(chunks(b * n, (h, w), chunk))
    calls = len(parts) * evaluations
    mean = torch.zeros(b, num_classes, h, w, device=image.device)
    for number, rows_here in enumerate(parts):

        def report(i: int, done: int = number * evaluations) -> None:
            if options.progress is not None:
                options.progress(done + i + 1, calls)

        noise = make_noise(keys, n, range(rows_here.start, rows_here.stop), image.device)
        probabilities = part(rows[rows_here], noise, report)
        labels[rows_here] = probabilities.argmax(1)
        mean.index_add_(0, rows[rows_here], probabilities / n)
    weights = torch.full((b, n), 1 / n, device=image.device)
    return Samples(labels.view(b, n, h, w), mean, weights, seed, evaluations)
