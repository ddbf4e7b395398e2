"""Batches of inputs that are sampled together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from stochseg.inference.jobs import Job
from stochseg.inference.plan import Plan
from stochseg.inference.result import StackResult, label_type

PIXELS_PER_CALL = 64 * 128 * 128
"""Pixels of all samples drawn by one call of the model, so that small images and slices share calls."""


def batches(jobs: Iterable[Job], n: int) -> Iterator[list[Job]]:
    """Group consecutive inputs of one size that fit into one call; a volume of more slices is a batch of its own."""
    batch: list[Job] = []
    for job in jobs:
        if batch and (
            batch[0].images.shape[1:] != job.images.shape[1:]
            or sum(len(j.images) for j in batch) + len(job.images) > _slices_per_call(batch[0], n)
        ):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def sample_batch(jobs: Sequence[Job], plan: Plan, advance: Callable[[float], None]) -> None:
    """Draw all samples of a batch into the `result` of its jobs.

    Args:
        jobs: Inputs of one size.
        plan: The model and its options.
        advance: Called with the number of inputs done, fractions included.
    """
    images = jobs[0].images if len(jobs) == 1 else torch.cat([job.images for job in jobs])
    s, _, h, w = images.shape
    n, classes = plan.options.n, plan.model.num_classes
    model, step = plan.model_for(h, w), _slices_per_call(jobs[0], n)
    labels = np.empty((s, n, h, w), label_type(classes))
    mean, weights = np.empty((s, classes, h, w), np.float32), np.empty((s, n), np.float32)
    start_time, evaluations = time.perf_counter(), 1
    for start in range(0, s, step):
        part = slice(start, min(start + step, s))

        def report(done: int, total: int, part: slice = part) -> None:
            advance(len(jobs) * (part.start + (part.stop - part.start) * done / total) / s)

        drawn = model.sample(images[part], progress=report, **plan.sampling)
        for array, tensor in ((labels, drawn.labels), (mean, drawn.mean), (weights, drawn.weights)):
            array[part] = tensor.cpu().numpy()
        evaluations = drawn.evaluations
        advance(len(jobs) * part.stop / s)
    seconds, start = time.perf_counter() - start_time, 0
    for job in jobs:
        own = slice(start, start + len(job.images))
        job.result = StackResult(labels[own], mean[own], weights[own], evaluations)
        job.seconds = seconds * len(job.images) / s
        start = own.stop


def _slices_per_call(job: Job, n: int) -> int:
    height, width = job.images.shape[-2:]
    return max(1, PIXELS_PER_CALL // (n * height * width))
