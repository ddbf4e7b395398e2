"""`stochseg predict`: a model over files, folders and volumes, one folder of results an input."""

from __future__ import annotations

import importlib.metadata
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.files import sha256
from stochseg.inference.jobs import Job, is_complete, read_job
from stochseg.inference.plan import Options, Plan
from stochseg.inference.result import StackResult, label_type
from stochseg.inference.result_folder import write_result
from stochseg.inference.sources import FORMAT, Source, find_sources
from stochseg.inference.writers import Prediction
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions

VERSION = 1
AT_ONCE = 64 * 128 * 128
"""Pixels of all samples that a call is asked for, so that small images and slices share calls."""


@dataclass(frozen=True)
class Outcome:
    """What became of an input: its folder, and remarks; or why it failed. A "note" is a remark on a whole folder."""

    source: str
    status: Literal["done", "kept", "failed", "note"]
    folder: Path | None = None
    problem: str = ""
    notices: tuple[str, ...] = ()


Report = Callable[[Outcome], None]
Progress = Callable[[float, int], None]
"""(inputs done, the current ones in part; inputs in all)."""


def predict(
    model: StochasticSegmenter,
    inputs: Iterable[str | Path],
    out: str | Path,
    options: Options | None = None,
    *,
    overwrite: bool = False,
    origin: str = "",
    report: Report | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Segment every input into a folder of its own below `out`; a bad one is reported and the others are done.

    inputs: files, folders and globs, see `find_sources`. A complete result of the same files, model and options is
    kept unless `overwrite`. Volumes are sampled slice by slice: sample i of a volume is sample i of each of its slices,
    drawn as `model.sample` draws it. origin: where the model came from, for the record.
    """
    plan, out = Plan(model, options or Options(), origin), Path(out)
    found = find_sources(inputs, plan.options.axis)
    if found.sources:
        _make_writable(out)
    total = len(found.problems) + len(found.sources)
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if report is not None:
            report(outcome)
        advance(0.0)

    def advance(part: float) -> None:
        if progress is not None:
            progress(sum(outcome.status != "note" for outcome in outcomes) + part, total)

    for notice in found.notices:
        tell(Outcome("", "note", notices=(notice,)))
    for where, problem in found.problems:
        tell(Outcome(where, "failed", problem=problem))
    for jobs in _batches(_jobs(found.sources, out, plan, overwrite, tell), plan.options.n):
        problem = _attempt(lambda jobs=jobs: _sample(jobs, plan, advance))
        for job in jobs:
            folder = out / job.source.name
            failure = problem or _attempt(lambda job=job, folder=folder: _write(job, plan, folder))
            tell(_outcome(job.source, failure, folder, job.notices))
    return outcomes


def _make_writable(out: Path) -> None:
    """Make the folder if need be. Asked before the first sample is drawn."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=out):
            return
    except OSError as error:
        in_the_way = next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None)
        why = error.strerror if in_the_way is None else f"{in_the_way} is a file, expected a folder"
        raise UserError(f"cannot write to {out}: {why}; give another --out") from None


# ---------------------------------------------------------------------- one input after the other


def _attempt(act: Callable[[], object]) -> str:
    """What went wrong, in words for the person; empty if nothing did."""
    try:
        act()
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
        if not short:
            raise
        return "does not fit into memory; take fewer --samples or a smaller --tile"
    return ""


def _outcome(source: Source, problem: str, folder: Path, notices: tuple[str, ...] = ()) -> Outcome:
    where = str(source.files[0] if len(source.files) == 1 else source.files[0].parent)
    if problem:  # in one line, and without the name that goes before it anyway
        problem = " ".join(problem.split()).removeprefix(f"{where}: ").removeprefix(f"{where} ")
        return Outcome(where, "failed", problem=problem, notices=notices)
    return Outcome(where, "done", folder, notices=notices)


def _jobs(
    sources: Sequence[Source], out: Path, plan: Plan, overwrite: bool, tell: Callable[[Outcome], None]
) -> Iterator[Job]:
    """The inputs that are still to be done, read; the others are told of."""
    for source in sources:
        folder, read = out / source.name, list[Job]()

        def act(source: Source = source, folder: Path = folder, read: list[Job] = read) -> None:
            for file in source.files:
                if file.stat().st_size == 0:
                    raise UserError(f"{file}: the file is empty, 0 bytes; copy or export it again")
            files = [{"file": str(file), "sha256": sha256(file)} for file in source.files]
            if overwrite or not is_complete(folder, files, plan):
                read.append(read_job(source, files, plan))

        problem = _attempt(act)
        if problem:
            tell(_outcome(source, problem, folder))
        elif not read:
            tell(Outcome(str(source.files[0]), "kept", folder))
        yield from read


def _batches(jobs: Iterable[Job], n: int) -> Iterator[list[Job]]:
    """Inputs of one size together, as many as share a call; a volume of more slices than that alone."""
    batch: list[Job] = []
    for job in jobs:
        size = job.images.shape[1:]
        if batch and (
            batch[0].images.shape[1:] != size
            or sum(len(j.images) for j in batch) + len(job.images) > _slices_at_once(batch[0], n)
        ):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def _slices_at_once(job: Job, n: int) -> int:
    return max(1, AT_ONCE // (n * job.images.shape[-2] * job.images.shape[-1]))


def _sample(jobs: Sequence[Job], plan: Plan, advance: Callable[[float], None]) -> None:
    """Draw all samples of these inputs, `_slices_at_once` slices a call."""
    options, images = plan.options, jobs[0].images if len(jobs) == 1 else torch.cat([job.images for job in jobs])
    s, _, h, w = images.shape
    n, classes = options.n, plan.model.num_classes
    model, step = plan.model_for(h, w), _slices_at_once(jobs[0], n)
    labels = np.empty((s, n, h, w), label_type(classes))
    mean, weights = np.empty((s, classes, h, w), np.float32), np.empty((s, n), np.float32)
    began, evaluations = time.perf_counter(), 1
    for start in range(0, s, step):
        part = slice(start, min(start + step, s))

        def report(done: int, calls: int, part: slice = part) -> None:
            advance(len(jobs) * (part.start + (part.stop - part.start) * done / calls) / s)

        sampling = options.model_dump(include=set(SamplingOptions.model_fields))
        drawn = model.sample(images[part], progress=report, **sampling)
        for array, tensor in ((labels, drawn.labels), (mean, drawn.mean), (weights, drawn.weights)):
            array[part] = tensor.cpu().numpy()
        evaluations = drawn.evaluations
        advance(len(jobs) * part.stop / s)
    seconds, start = time.perf_counter() - began, 0
    for job in jobs:
        own = slice(start, start + len(job.images))
        job.result = StackResult(labels[own], mean[own], weights[own], evaluations)
        job.seconds = seconds * len(job.images) / s
        start = own.stop


def _write(job: Job, plan: Plan, folder: Path) -> None:
    assert job.result is not None
    model = plan.model
    h, w = job.images.shape[-2:]
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "inputs": job.files,
        "model": {
            "name": model.name,
            "origin": plan.origin,
            "sha256": plan.digest,
            "config": model.config.model_dump(mode="json"),
            "data": model.info.name,
        },
        "options": plan.options.model_dump(mode="json"),
        "evaluations": job.result.evaluations,
        "tiled": plan.large(h, w) and plan.tiled is not None,
        "notices": list(job.notices),
        "seconds": round(job.seconds, 3),
        "device": str(model.device),
        "versions": _versions(),
    }
    write_result(folder, Prediction(job.result, job.stack, model.info, model.name, plan.options.overview), facts)
    job.result = None  # frees its memory for the next inputs


def _versions() -> dict[str, str]:
    versions = {"stochseg": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "pillow", "tifffile", "nibabel", "pydicom", "highdicom"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
