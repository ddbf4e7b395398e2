"""Sampling options, and the one loop that draws the samples of every model.

A model encodes a batch of images once and gives the loop a `Drawing`: a function that draws some rows, a row being one
sample of one image. The loop cuts the rows into chunks, so that memory stays bounded for any number of samples, gives
each chunk its noise, reports progress and collects labels, mean and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, ClassVar

import torch
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.core import NOISES, Noise
from stochseg.data.fitting import Fit
from stochseg.errors import NotFinite, UserError, hyphenated, unknown_name
from stochseg.limits import MAX_EVALUATIONS, MAX_SAMPLES, MAX_SEED
from stochseg.networks.shapes import one_hot
from stochseg.types import DatasetInfo, Samples, Window

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
    rater: str | None = Field(None, description="draw as this rater would, by name or number; None: as any of them")
    guidance: float | None = Field(
        None,
        ge=0,
        le=10,
        description="0: any rater, 1: the one chosen, between: interpolated, above: exaggerated",
    )
    renamed_keys: ClassVar[dict[str, str]] = {"samples": "n", "steps": "evaluations"}

    @field_validator("rater", mode="before")
    @classmethod
    def _as_text(cls, rater: object) -> object:
        return str(rater) if isinstance(rater, int) and not isinstance(rater, bool) else rater

    @model_serializer(mode="wrap")
    def _without_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that came later where they say nothing: records of earlier samples stay as they were."""
        values: dict[str, Any] = dump(self)
        for key in ("rater", "guidance"):
            if values.get(key, ...) is None:
                del values[key]
        return values

    @field_validator("sampler", "grid", "noise")
    @classmethod
    def _with_hyphens(cls, name: str | None) -> str | None:
        return None if name is None else hyphenated(name)

    def or_default(self, defaults: SamplingOptions) -> SamplingOptions:
        """These options, with `defaults` in place of None."""
        return defaults.model_copy(update=self.model_dump(exclude_none=True))


def check_choices(
    options: SamplingOptions, choices: Mapping[str, Collection[str]], max_evaluations: int | None, model: str
) -> None:
    """Raise a UserError for options of which this model has no choice, or other choices."""
    for option in ("evaluations", "sampler", "grid", "noise", "guidance"):
        got, names = getattr(options, option), choices.get(option)
        if got is None:
            continue
        if names is None:
            raise UserError(f"model {model!r} has no choice of {option}, got {got!r}; omit it")
        if names and got not in names:
            raise unknown_name(option, got, names)
    if options.evaluations is not None and max_evaluations is not None and options.evaluations > max_evaluations:
        raise UserError(f"evaluations must be between 1 and T={max_evaluations}, got {options.evaluations}")
    if options.guidance is not None and options.rater is None:
        raise UserError(f"guidance {options.guidance:g} leads towards a rater; choose one with rater=NAME, or omit it")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Let a model evaluate, and train afterwards if it did before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


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

    @property
    def label_maps(self) -> Tensor:
        """The labels "m *space", drawn or most probable."""
        return self.probabilities.argmax(1) if self.labels is None else self.labels


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
    counts: Sequence[int] = (),
) -> dict[int, Samples]:
    """Draw `options.n` samples per image, label maps of spatial size `size`.

    Sample i of an image uses the stream (*key, i), or with Latin noise shares one with the other samples of the image.
    The options are without None (see `SamplingOptions.or_default`), `chunk` is that of `chunks`.

    Returns:
        All samples under the key `options.n`, and the first of them under each smaller number of `counts`, with the
        mean of these alone. Only independent, equally weighted samples have such a part.
    """
    b, n = len(keys), options.n
    labels = torch.empty(b * n, *size, dtype=torch.int64, device=device)
    means = {count: torch.zeros(b, info.num_classes, *size, device=device) for count in (*counts, n)}
    evaluations = 1
    parts = list(chunks(b * n, size, chunk))
    for part, rows, drawn in _draw_chunks(drawing, keys, options, parts, device, progress):
        labels[part] = drawn.label_maps
        evaluations = max(evaluations, drawn.evaluations)
        for count, mean in means.items() if drawing.mean is None else ():
            weighted = drawn.probabilities / count
            if count < n:  # samples beyond the first add 0
                weighted *= _per_row(rows.sample < count, mean)
            elif drawing.weights is not None:
                weighted = drawn.probabilities * _per_row(drawing.weights.flatten()[part], mean)
            mean.index_add_(0, rows.image, weighted)
    labels, found = labels.view(b, n, *size), dict[int, Samples]()
    for count, mean in means.items():
        equal = torch.full((b, count), 1 / count, device=device)
        weights = equal if drawing.weights is None or count < n else drawing.weights
        mean = mean if drawing.mean is None else drawing.mean
        found[count] = Samples(labels[:, :count], mean, weights, options.seed, evaluations, info)
    return found


def draw_parts(
    drawing: Drawing,
    key: Key,
    parts: Sequence[slice],
    options: SamplingOptions,
    info: DatasetInfo,
    *,
    device: torch.device,
    progress: Progress | None = None,
) -> Iterator[Samples]:
    """Draw the samples of one image part by part (see `chunks`); those of `draw_samples`, never all at once.

    Returns:
        The samples of each part and their mean. Their weights are those among all samples, and sum to 1 over all parts.
    """

    def as_samples(chunk: tuple[slice, Rows, Drawn]) -> Samples:
        part, _, drawn = chunk
        labels, mean = drawn.label_maps, drawing.mean
        weights = torch.full((1, len(labels)), 1 / options.n, device=device)
        weights = weights if drawing.weights is None else drawing.weights[:, part]
        if mean is None and len(labels) == 1:
            mean = drawn.probabilities
        elif mean is None:
            mean = drawn.probabilities.mul_(_per_row(weights[0] / weights.sum(), drawn.probabilities)).sum(0)[None]
        return Samples(labels[None], mean, weights, options.seed, drawn.evaluations, info)

    # By `map`, because the variable of a loop would keep a part while the next one is drawn.
    return map(as_samples, _draw_chunks(drawing, [key], options, parts, device, progress))


def _draw_chunks(
    drawing: Drawing,
    keys: Keys,
    options: SamplingOptions,
    parts: Sequence[slice],
    device: torch.device,
    progress: Progress | None,
) -> Iterator[tuple[slice, Rows, Drawn]]:
    """Draw these parts of the rows, each with its noise, and report the evaluations."""
    n, total = options.n, len(parts) * drawing.evaluations
    make_noise = NOISES[options.noise or "independent"]

    @torch.no_grad()
    def draw(numbered: tuple[int, slice]) -> tuple[slice, Rows, Drawn]:
        done, part = numbered

        def report(i: int) -> None:
            if progress is not None:
                progress(done * drawing.evaluations + i + 1, total)

        number = torch.arange(part.start, part.stop, device=device)
        rows = Rows(number // n, number % n)
        noise = make_noise(keys, n, range(part.start, part.stop), device)
        return part, rows, drawing.draw(rows, noise, report)

    return map(draw, enumerate(parts))


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    """Values "m" that broadcast over the other axes of `like`."""
    return values.view(-1, *[1] * (like.ndim - 1))


def broken_rows(*outputs: Tensor) -> Tensor:
    """Rows "m" bool of network outputs "m …" in which a value is NaN or infinite, on their device."""
    ends = [end(x, dim=tuple(range(1, x.ndim))) for x in outputs for end in (torch.amin, torch.amax)]  # NaN if any is
    return ~torch.isfinite(torch.stack(ends)).all(0)


def mark_broken(x: Tensor, broken: Tensor) -> Tensor:
    """Replace the rows of "m …" where `broken` "m" is True by NaN, so that labels drawn from NaN do not hide it."""
    return x.masked_fill(broken.view(-1, *[1] * (x.ndim - 1)), torch.nan)


def check_finite(samples: Samples) -> Samples:
    """Return the samples, or raise NotFinite if a probability is NaN or infinite: its arg-max would be a label.

    The mean shows it, because it adds the probabilities of all samples: one read of the device for all of them.
    """
    broken = broken_rows(samples.mean)
    if not bool(broken.any()):
        return samples
    bad = ", ".join(str(i) for i, wrong in enumerate(broken.tolist()) if wrong)
    raise NotFinite(
        f"image {bad}: the output of the network is NaN or infinite, so there is no segmentation. Likely causes: "
        "intensities far from those of the training images (check their units, replace no-data values), damaged or "
        "diverged weights (copy or train the model again, with a lower lr or precision=float32), weights stored or "
        "computed in 16 bits (save without half=True, use the engine eager)"
    )


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
    ends = tuple((part.start, part.stop) for part in window)
    return replace(samples, labels=labels, mean=mean, window=ends)


def impose(labels: Tensor, known: Tensor | None) -> Tensor:
    """Labels with the known ones in their place; known: of the same or a broadcastable shape, -1 where unknown."""
    return labels if known is None else torch.where(known >= 0, known, labels).to(labels.dtype)


def impose_samples(samples: Samples, known: Tensor) -> Samples:
    """Samples that have the known labels "b *space", and no doubt about them."""
    certain = one_hot(known, samples.mean.shape[1], samples.mean.dtype)
    mean = torch.where((known >= 0)[:, None], certain, samples.mean)
    return replace(samples, labels=impose(samples.labels, known[:, None]), mean=mean)


def cut_notice(window: Window, cut_off: Tensor) -> str:
    """Text for foreground that reaches the border of the window. cut_off: "b n" bool (`Samples.cut_off`)."""
    b, n = cut_off.shape
    part = "×".join(str(stop - start) for start, stop in window)
    most = int(cut_off.sum(1).max())
    which = f"in {most} of {n} samples"
    if b > 1:
        which = f"in up to {most} of {n} samples of {int(cut_off.any(1).sum())} of {b} images"
    return (
        f"{which}, the foreground reaches the border of the central {part} "
        "pixels, the part that the model labels: objects that extend beyond it are cut off with a straight edge. Crop "
        "the image so that the object is in its center, at the scale of the training images"
    )


def undo_fit(samples: Samples, fit: Fit | None) -> Samples:
    """Resize samples of a fitted image back: labels to the nearest, mean probabilities smoothly."""
    if fit is None:
        return samples
    labels, mean = fit.undo_labels(samples.labels), fit.undo_probabilities(samples.mean)
    if samples.window is None:
        return replace(samples, labels=labels, mean=mean)
    inside = torch.zeros(samples.labels.shape[2:], dtype=torch.bool)
    inside[tuple(slice(start, stop) for start, stop in samples.window)] = True
    inside = fit.undo_labels(inside)
    ends = (torch.nonzero(inside.any(other)).flatten().tolist() for other in (1, 0))  # of rows and columns
    return replace(
        samples, labels=labels, mean=mean, window=tuple((each[0], each[-1] + 1) if each else (0, 0) for each in ends)
    )
