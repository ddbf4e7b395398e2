"""Sampling options, and the one loop that draws the samples of every model.

A model encodes a batch of images once and gives the loop a `Drawing`: a function that draws some rows, a row being one
sample of one image. The loop cuts the rows into chunks, so that memory stays bounded for any number of samples, gives
each chunk its noise, reports progress and collects labels, mean and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from stochseg.config import Config
from stochseg.core import NOISES, Noise
from stochseg.errors import hyphenated
from stochseg.limits import MAX_EVALUATIONS, MAX_SAMPLES, MAX_SEED
from stochseg.types import DatasetInfo, Samples

Key = tuple[int, ...]
"""Integers that name a stream of randomness, e.g. (seed, step, example)."""

Keys = Sequence[Key]
"""One key per image."""

Progress = Callable[[int, int], None]
"""Called with (network evaluations done, evaluations in total)."""

Report = Callable[[int], None]
"""Called with i after the i-th network evaluation of a chunk, counted from 0."""


class SamplingOptions(Config):
    """Options of sampling. None stands for the model's own default (`model.default_sampling()`)."""

    n: int = Field(16, ge=1, le=MAX_SAMPLES, description="samples per image")
    evaluations: int | None = Field(None, ge=1, le=MAX_EVALUATIONS, description="network evaluations per sample")
    sampler: str | None = Field(None, description="sampling algorithm")
    grid: str | None = Field(None, description="time steps at which the network is evaluated")
    noise: str | None = Field(None, description="independent, or latin: samples of an image are stratified")
    seed: int = Field(0, ge=0, le=MAX_SEED, description="same seed, same samples")
    renamed_keys: ClassVar = {"samples": "n", "steps": "evaluations"}

    @field_validator("sampler", "grid", "noise")
    @classmethod
    def _with_hyphens(cls, name: str | None) -> str | None:
        return None if name is None else hyphenated(name)

    def or_default(self, defaults: SamplingOptions) -> SamplingOptions:
        """These options, with `defaults` in place of None."""
        return defaults.model_copy(update=self.model_dump(exclude_none=True))


@dataclass(frozen=True)
class Rows:
    """Samples to draw, one per row. image: "m", the index of its image; sample: "m", its number among the n."""

    image: Tensor
    sample: Tensor


@dataclass(frozen=True)
class Drawn:
    """Samples of some rows.

    probabilities: "m l *space", those of the last network evaluation; labels: "m *space" int64, by default the most
    probable ones; evaluations: network evaluations per sample.
    """

    probabilities: Tensor
    labels: Tensor | None = None
    evaluations: int = 1


@dataclass(frozen=True)
class Drawing:
    """The function that draws samples of encoded images, and what the loop must know about it.

    draw: draws some rows with their noise and reports each network evaluation; evaluations: how many it reports per
    chunk; weights: "b n", equal by default; mean: "b l *space" where the model knows it exactly, by default the average
    of the rows' probabilities.
    """

    draw: Callable[[Rows, Noise, Report], Drawn]
    evaluations: int = 1
    weights: Tensor | None = None
    mean: Tensor | None = None


def one_pass(predict: Callable[[Rows, Noise], Tensor], weights: Tensor | None = None) -> Drawing:
    """The drawing of a model with one network evaluation per sample; predict: the probabilities of some rows."""

    def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
        probabilities = predict(rows, noise)
        report(0)
        return Drawn(probabilities)

    return Drawing(draw, weights=weights)


def chunks(total: int, size: Sequence[int], chunk: int) -> Iterator[slice]:
    """Split `total` samples of this spatial size: `chunk` at a time at 128×128 pixels, proportionally at others."""
    step = max(1, chunk * 128 * 128 // math.prod(size))
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def draw_samples(
    drawing: Drawing,
    keys: Keys,
    size: Sequence[int],
    options: SamplingOptions,
    info: DatasetInfo,
    *,
    chunk: int,
    device: torch.device,
    progress: Progress | None = None,
) -> Samples:
    """Draw `options.n` samples per image, label maps of spatial size `size`.

    Sample i of an image uses the stream (*key, i), or with Latin noise shares one with the other samples of the image.
    The options are without None (see `SamplingOptions.or_default`), `chunk` is that of `chunks`.
    """
    b, n = len(keys), options.n
    make_noise = NOISES[options.noise or "independent"]
    number = torch.arange(b * n, device=device)
    rows = Rows(number // n, number % n)
    parts = list(chunks(b * n, size, chunk))
    labels = torch.empty(b * n, *size, dtype=torch.int64, device=device)
    mean = torch.zeros(b, info.num_classes, *size, device=device)
    total, evaluations = len(parts) * drawing.evaluations, 1
    for done, part in enumerate(parts):

        def report(i: int, before: int = done * drawing.evaluations) -> None:
            if progress is not None:
                progress(before + i + 1, total)

        noise = make_noise(keys, n, range(part.start, part.stop), device)
        drawn = drawing.draw(Rows(rows.image[part], rows.sample[part]), noise, report)
        labels[part] = drawn.probabilities.argmax(1) if drawn.labels is None else drawn.labels
        evaluations = max(evaluations, drawn.evaluations)
        if drawing.mean is None:
            weighted = drawn.probabilities / n
            if drawing.weights is not None:
                weight = drawing.weights.flatten()[part]
                weighted = drawn.probabilities * weight.view(-1, *[1] * (mean.ndim - 1))
            mean.index_add_(0, rows.image[part], weighted)
    mean = mean if drawing.mean is None else drawing.mean
    weights = torch.full((b, n), 1 / n, device=device) if drawing.weights is None else drawing.weights
    return Samples(labels.view(b, n, *size), mean, weights, options.seed, evaluations, info)


def cut_window(x: Tensor, window: tuple[slice, ...]) -> Tensor:
    """The window of the spatial axes of "... *space", one slice per axis."""
    index: tuple[EllipsisType | slice, ...] = (..., *window)
    return x[index]


def embed(samples: Samples, window: tuple[slice, ...], size: Sequence[int]) -> Samples:
    """Extend samples of a window to the whole image, with class 0 outside."""
    if tuple(samples.labels.shape[2:]) == tuple(size):
        return samples
    labels = samples.labels.new_zeros(*samples.labels.shape[:2], *size)
    cut_window(labels, window).copy_(samples.labels)
    mean = samples.mean.new_zeros(*samples.mean.shape[:2], *size)
    mean[:, 0] = 1
    cut_window(mean, window).copy_(samples.mean)
    return replace(samples, labels=labels, mean=mean)
