"""Inputs of `predict` as jobs: read and checked, sampled in batches, and described for result.json."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochseg._version import __version__
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.extras import require
from stochseg.inference.plan import Plan
from stochseg.inference.result import FloatArray, LabelArray, StackResult, label_type
from stochseg.inference.result_folder import FORMAT
from stochseg.inference.sources import Source, read_stack
from stochseg.inference.stacks import Stack
from stochseg.inference.writers.dicom_seg import check_headers
from stochseg.memory import release_freed_memory
from stochseg.models import StochasticSegmenter
from stochseg.models.inputs import image_key
from stochseg.models.intensities import check_intensities, describe_unusual
from stochseg.models.sampling import SamplingOptions, chunks, cut_notice
from stochseg.types import DatasetInfo, Window, reaches_border

MIN_LABELED = 0.2
"""A notice is printed if the model labels a smaller part of the image, because it was trained on its center."""
PIXELS_PER_CALL = 64 * 128 * 128
"""Pixels of all samples drawn by one call of the model, so that small images and slices share calls."""
WATCHED_CHUNK = 4
"""Samples of 128×128 pixels that are drawn together while somebody watches."""
VERSION = 1  # of result.json
SLICES = {
    "shared": "its slices are segmented one by one, with the same noise in each: probabilities are those of single "
    "slices; volumes and everything else about the whole are approximate",
    "independent": "its slices are segmented one by one and drawn independently: probabilities are those of single "
    "slices; the true spread of volumes is wider than that of the samples",
}
"""Notices about volumes that a model of images segments."""
PACKAGES = ("torch", "numpy", "pillow", "tifffile", "nibabel", "pydicom", "highdicom")

Watch = Callable[[int, LabelArray, FloatArray], None]
"""Called with the number of the first of some samples, their labels "s m h w" and their weights "m"."""


@dataclass
class Job:
    """An input to sample.

    images: normalized, slices "s c h w", or "1 c d h w" for a model of volumes; files: its files with their checksums;
    notices: for the user; result: its samples, once they are drawn; seconds: the time this took.
    """

    source: Source
    stack: Stack
    images: Tensor
    files: list[dict[str, str]]
    notices: tuple[str, ...]
    result: StackResult | None = None
    seconds: float = 0.0


# --- reading -------------------------------------------------------------------------------------------


def read_job(source: Source, files: list[dict[str, str]], plan: Plan) -> Job:
    """Read and check an input; raise a `UserError` if it cannot be sampled, before any time is spent on it."""
    stack, model = read_stack(source.files, source.axis), plan.model
    notices: list[str] = []
    if stack.alpha and stack.values.ndim == 4 and stack.values.shape[-1] == model.image_channels + 1:
        stack = replace(stack, values=stack.values[..., :-1], alpha=False)
        notices.append("its alpha channel (opacity) was dropped")
    check_channels(stack, model)
    images = _prepare_volume(stack, model) if plan.takes_volumes else _prepare(stack, model)
    size = images.shape[2:]
    plan.model_for(*size)
    if plan.is_large(*size) and plan.tiled is None:
        notices.append(f"taken whole: {plan.why_whole}")
    notices += _check_intensities(images, plan) + _check_size(size, model)
    notices += orientation_notices(stack)
    stack, more = with_checked_headers(stack, model.info)
    notices += more
    notices += calibration_notices(plan, len(images))
    if len(images) > 1:
        notices.append(SLICES[plan.options.slices or "shared"])
    return Job(source, stack, images, files, tuple(notices))


def check_channels(stack: Stack, model: StochasticSegmenter) -> None:
    """Raise a `UserError` for another number of channels than the model takes, such as a volume over time."""
    got = stack.values.shape[3] if stack.values.ndim == 4 else 1
    if got != model.image_channels:
        remedy = f"convert it to {'grayscale' if model.image_channels == 1 else f'{model.image_channels} channels'}"
        if stack.lattice is not None and got > 1:
            remedy = "if it is a series over time or of several contrasts, save one volume per file"
        raise UserError(f"the model takes {model.image_channels} channel(s), got {got}; {remedy}")


def orientation_notices(stack: Stack) -> list[str]:
    """Notices of the assumptions about a volume that does not state its orientation."""
    if stack.lattice is None or stack.lattice.is_oriented:
        return []
    spacing = " × ".join(f"{step:g}" for step in stack.lattice.spacing)
    return [
        "the file states no orientation (sform_code and qform_code are 0), so slices are shown in the order of the "
        f"array, and voxels (slice × row × column) are assumed to be {spacing} mm; if that is wrong, write the file "
        "again with its affine"
    ]


def calibration_notices(plan: Plan, cases: int) -> list[str]:
    """Why the calibration of a model does not apply. cases: images or volumes of the input that are sampled."""
    if plan.calibration is not None and cases > 1:
        return ["without calibrated intervals: the model was calibrated on single images, not on volumes of slices"]
    return [plan.uncalibrated] if plan.uncalibrated else []


def with_checked_headers(stack: Stack, info: DatasetInfo) -> tuple[Stack, list[str]]:
    """The stack without its DICOM headers if no segmentation can refer to them, with a notice that says why."""
    if not stack.headers:
        return stack, []
    require("highdicom", "medical", "writing DICOM SEG")
    height, width = stack.values.shape[1:3]
    try:
        check_headers(stack.headers, info, (height, width))
    except UserError as error:
        return replace(stack, headers=()), [f"without fused.dcm: {error}"]
    return stack, []


def _prepare(stack: Stack, model: StochasticSegmenter) -> Tensor:
    """Normalize the slices, "s c h w"."""
    prepared = []
    for number, values in enumerate(stack.values):
        try:
            prepared.append(model.prepare(values, allow_unusual_input=True))  # checked as a whole below
        except UserError as error:
            raise UserError(str(error) if len(stack.values) == 1 else f"slice {number}: {error}") from None
    return torch.cat(prepared)


def _prepare_volume(stack: Stack, model: StochasticSegmenter) -> Tensor:
    """Normalize the slices as one volume, "1 c d h w"."""
    if len(stack.values) == 1:
        what = "a picture" if stack.lattice is None else "a single slice"
        raise UserError(
            f"the model takes volumes, expected NIfTI or a DICOM series of several slices, got {what}; give the whole "
            "volume, or use a model of images"
        )
    return model.prepare(stack.values, allow_unusual_input=True)  # checked below


def _check_intensities(images: Tensor, plan: Plan) -> list[str]:
    """Refuse a picture or volume whose intensities are unlike those of the training, or notice them if allowed."""
    # As a whole: single slices of a volume may be empty.
    volume = images[0] if plan.takes_volumes else images.transpose(0, 1)
    if not plan.options.allow_unusual_input:
        check_intensities(volume, plan.model.info)
        return []
    problem = describe_unusual(volume, plan.model.info)
    return [problem] if problem else []


def _check_size(space: Sequence[int], model: StochasticSegmenter) -> list[str]:
    """Notice sizes "*space" that can be sampled but differ from the training images."""
    notices = []
    size, (height, width) = model.info.size, space[-2:]
    if size is not None and size != (height, width) and model.info.fit is None:
        notices.append(
            f"its {height}×{width} pixels are not resized, but the training images were resized to {size[0]}×{size[1]}:"
            " resize it first"
        )
    seen = model.info.fit or (height, width)  # by the network
    rows, columns = (part.stop - part.start for part in model.window(*space[:-2], *seen)[-2:])
    if rows * columns < MIN_LABELED * seen[0] * seen[1]:
        notices.append(
            f"the model labels the central {rows}×{columns} of its {seen[0]}×{seen[1]} pixels, all others are "
            "background; crop it around the region of interest, to the size of the training images"
        )
    return notices


# --- sampling ------------------------------------------------------------------------------------------


def batches(jobs: Iterable[Job], plan: Plan) -> Iterator[list[Job]]:
    """Group consecutive inputs of one size that fit into one call; a volume of more slices is a batch of its own."""
    batch: list[Job] = []
    for job in jobs:
        if batch and (
            batch[0].images.shape[1:] != job.images.shape[1:]
            or sum(len(j.images) for j in batch) + len(job.images) > _slices_per_call(batch[0], plan)
        ):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def sample_batch(jobs: Sequence[Job], plan: Plan, advance: Callable[[float], None], watch: Watch | None = None) -> None:
    """Draw all samples of a batch into the `result` of its jobs.

    Args:
        jobs: Inputs of one size.
        plan: The model and its options.
        advance: Called with the number of inputs done, fractions included.
        watch: Called with samples as soon as they are drawn, if the batch is one image or volume: a single sample
            first, then a few at a time.
    """
    if plan.takes_volumes or (watch is not None and sum(len(job.images) for job in jobs) == 1):
        for job in jobs:
            _sample_in_parts(job, plan, advance, watch)
        return
    images = jobs[0].images if len(jobs) == 1 else torch.cat([job.images for job in jobs])
    keys = _shared_keys(jobs) if plan.options.slices != "independent" else None
    s, _, h, w = images.shape
    n, classes = plan.options.n, plan.model.num_classes
    model, step = plan.model_for(h, w), _slices_per_call(jobs[0], plan)
    labels = np.empty((s, n, h, w), label_type(classes))
    mean, weights = np.empty((s, classes, h, w), np.float32), np.empty((s, n), np.float32)
    window: Window | None = None
    start_time, evaluations = time.perf_counter(), 1
    for start in range(0, s, step):
        part = slice(start, min(start + step, s))

        def report(done: int, total: int, part: slice = part) -> None:
            advance(len(jobs) * (part.start + (part.stop - part.start) * done / total) / s)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CutLabelsWarning)  # a notice of the result says it
            here = None if keys is None else keys[part]
            drawn = model.sample(images[part], keys=here, progress=report, allow_unusual_input=True, **plan.sampling)
        for array, tensor in ((labels, drawn.labels), (mean, drawn.mean), (weights, drawn.weights)):
            array[part] = tensor.cpu().numpy()
        evaluations, window = drawn.evaluations, drawn.window
        advance(len(jobs) * part.stop / s)
    seconds, start = time.perf_counter() - start_time, 0
    for job in jobs:
        own = slice(start, start + len(job.images))
        job.result = StackResult(labels[own], mean[own], weights[own], evaluations, window)
        job.notices += _check_borders(job.result)
        job.seconds = seconds * len(job.images) / s
        start = own.stop


def _shared_keys(jobs: Sequence[Job]) -> list[int]:
    """One key per slice: the slices of a volume share theirs, so that sample i is one reading of them all."""
    whole = [image_key(job.images[0] if len(job.images) == 1 else job.images) for job in jobs]
    return [key for key, job in zip(whole, jobs, strict=True) for _ in job.images]


def _sample_in_parts(job: Job, plan: Plan, advance: Callable[[float], None], watch: Watch | None) -> None:
    """Draw the samples of an image or a volume as one into the `result` of its job, a few at a time."""
    volume = job.images[0] if plan.takes_volumes else job.images.transpose(0, 1)  # "c d h w"
    _, d, h, w = volume.shape
    n, classes, done, start_time = plan.options.n, plan.model.num_classes, 0, time.perf_counter()
    labels, mean = np.empty((d, n, h, w), label_type(classes)), np.zeros((d, classes, h, w), np.float32)
    weights, evaluations, window = np.empty((d, n), np.float32), 1, None
    model, options = plan.model_for(*job.images.shape[2:]), SamplingOptions.parse(plan.sampling)
    pieces = None if watch is None else list(_watched_parts(n, (d, h, w), model.config.chunk))
    parts = model.sample_parts(job.images, options, lambda done, total: advance(done / total), pieces)
    for drawn in parts:
        part = slice(done, done + drawn.labels.shape[1])
        share = float(drawn.weights.sum())
        labels[:, part] = drawn.labels[0].reshape(-1, d, h, w).cpu().transpose(0, 1).numpy()
        for index in range(classes):  # without a copy of all
            mean[:, index] += share * drawn.mean[0, index].cpu().numpy()
        weights[:, part] = drawn.weights.cpu().numpy()
        done, evaluations, window = part.stop, drawn.evaluations, drawn.window and drawn.window[-2:]
        del drawn  # before the next is drawn
        release_freed_memory()  # holes between large tensors add up
        if watch is not None:
            watch(part.start, labels[:, part], weights[0, part])
    del parts
    release_freed_memory()
    job.result = StackResult(labels, mean, weights, evaluations, window)
    job.notices += _check_borders(job.result)
    job.seconds = time.perf_counter() - start_time


def _watched_parts(n: int, size: Sequence[int], chunk: int) -> Iterator[slice]:
    """The first sample alone, so that it is seen soon, then parts of a few."""
    yield slice(0, 1)
    for part in chunks(n - 1, size, min(chunk, WATCHED_CHUNK)):
        yield slice(part.start + 1, part.stop + 1)


def _check_borders(result: StackResult) -> tuple[str, ...]:
    """Notice foreground that may be cut off at the border of the part that the model labels."""
    if result.window is None:
        return ()
    cut_off = reaches_border(torch.from_numpy(result.labels != 0), result.window)
    return (cut_notice(result.window, cut_off),) if bool(cut_off.any()) else ()


def _slices_per_call(job: Job, plan: Plan) -> int:
    """Images per call, at the size at which the network sees them; a volume is a call of its own."""
    if plan.takes_volumes:
        return 1
    pixels = max(math.prod(job.images.shape[-2:]), math.prod(plan.model.info.fit or ()))
    return max(1, PIXELS_PER_CALL // (plan.options.n * pixels))


# --- the record ----------------------------------------------------------------------------------------


def describe(job: Job, plan: Plan, result: StackResult) -> dict[str, Any]:
    """Describe inputs, model, options and versions of a prediction as JSON values."""
    model, window = plan.model, result.window
    size = job.images.shape[2:]
    record = plan.calibration_record
    return {
        "format": FORMAT,
        "version": VERSION,
        "inputs": job.files,
        "model": {
            "name": model.name,
            "origin": plan.origin,
            "sha256": plan.fingerprint,
            "config": model.config.model_dump(mode="json"),
            "data": model.info.name,
        },
        **({} if record is None else {"calibration": record}),
        "options": plan.options.model_dump(mode="json"),
        "evaluations": result.evaluations,
        "window": None if window is None else [list(ends) for ends in window],
        "tiled": plan.is_large(*size) and plan.tiled is not None,
        "coupling": "joint" if plan.takes_volumes else plan.options.slices or "shared",
        "notices": list(job.notices),
        "seconds": round(job.seconds, 3),
        "device": str(model.device),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the packages that results depend on."""
    found = {"stochseg": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
