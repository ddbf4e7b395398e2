"""`stochseg predict`: a model over files, folders and volumes, one folder of results an input."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stochseg._version import __version__
from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.files import recover_folder, sha256
from stochseg.inference.sources import FORMAT, RESULT, Source, find_sources, is_result
from stochseg.inference.stacks import Stack, medical
from stochseg.inference.writers import label_type, to_dicom_seg, write_result
from stochseg.models import StochasticSegmenter
from stochseg.models.base import SamplingOptions
from stochseg.models.io import read_json
from stochseg.types import Samples

VERSION = 1
TILE = 512
"""Images of more pixels a side are cut into windows, if the model can be tiled."""
WHOLE = 2048 * 2048
"""Pixels of the largest image that a model sees at once, if it cannot be tiled."""
AT_ONCE = 64 * 128 * 128
"""Pixels of all samples that a call is asked for, so that small images and slices share calls."""
FAR = 20.0
"""Normalised intensities of more standard deviations are remarked on."""
FLAT = 0.02
"""So are images that span fewer, without being of one grey: fractions of 1 for a model of 255 grey levels."""
SEEN = 0.2
"""And images of which the model labels a smaller share, because it was trained on what lies in the centre."""


class Options(Config):
    """How to predict; what is None is the model's or the input's own."""

    samples: int = Field(16, ge=1, description="label maps to draw an image")
    steps: int | None = Field(None, ge=1, description="network evaluations a sample")
    sampler: str | None = None
    grid: str | None = Field(None, description="where the network is called: even, trailing, entropy")
    noise: str | None = Field(None, description="independent, or latin: samples that cover more")
    seed: int = Field(0, ge=0)
    engine: str = Field("eager", description="who computes the networks")
    tile: int | None = Field(
        None, ge=0, description=f"windows of so many pixels a side; None: {TILE} where the model can be tiled; 0: never"
    )
    overlap: int = Field(96, ge=8, description="pixels that neighbouring windows share")
    axis: int | None = Field(None, ge=0, le=2, description="axis along which NIfTI volumes are cut into slices")

    @property
    def sampling(self) -> dict[str, Any]:
        """What of it the model's `sample` takes."""
        return self.model_dump(include={"steps", "sampler", "grid", "noise"})


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
    for jobs in _batches(_jobs(found.sources, out, plan, overwrite, tell), plan.options.samples):
        problem = _attempt(lambda jobs=jobs: _sample(jobs, plan, advance))
        for job in jobs:
            folder = out / job.source.name
            failure = problem or _attempt(lambda job=job, folder=folder: _write(job, plan, folder))
            tell(_outcome(job.source, failure, folder, job.notices))
    return outcomes


class Plan:
    """The model as the options want it: with its engine, and in windows for large images."""

    def __init__(self, model: StochasticSegmenter, options: Options, origin: str = ""):
        model.check_options(SamplingOptions(**options.sampling))
        self.options, self.origin = options, origin
        self.digest = _digest(model)
        if options.engine != "eager":
            from stochseg.inference.engines import with_engine

            model = with_engine(model, options.engine)
        self.model, self.tiled, self.why_whole = model, None, ""
        if options.tile == 0:
            return
        try:
            self.tiled = model.tiled(options.tile or TILE, options.overlap)
        except UserError as error:
            if options.tile is not None:
                raise
            self.why_whole = str(error)

    def large(self, height: int, width: int) -> bool:
        return self.options.tile != 0 and max(height, width) > (self.options.tile or TILE)

    def model_for(self, height: int, width: int) -> StochasticSegmenter:
        if not self.large(height, width):
            return self.model
        if self.tiled is not None:
            return self.tiled
        if height * width > WHOLE:
            raise UserError(
                f"{height}×{width} pixels are too many: {self.why_whole}. Images up to {WHOLE:,} pixels, such as "
                f"2048×2048, are taken whole: make it smaller, or insist with --tile 0"
            )
        return self.model


def _digest(model: StochasticSegmenter) -> str:
    """A name for the model by its content."""
    digest = hashlib.sha256(model.name.encode() + model.config.model_dump_json().encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


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


@dataclass
class Job:
    """An input that was read. images: "s c h w", normalised; samples: its slices' share of the calls so far."""

    source: Source
    stack: Stack
    images: Tensor
    files: list[dict[str, str]]
    notices: tuple[str, ...]
    samples: Samples | None = None
    seconds: float = 0.0


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
            if overwrite or not _is_complete(folder, files, plan):
                read.append(_read(source, files, plan))

        problem = _attempt(act)
        if problem:
            tell(_outcome(source, problem, folder))
        elif not read:
            tell(Outcome(str(source.files[0]), "kept", folder))
        yield from read


def _is_complete(folder: Path, files: Sequence[dict[str, str]], plan: Plan) -> bool:
    """Whether the result is there, whole. One of another image, model or options is not written over unasked."""
    recover_folder(folder)
    if not (folder.is_dir() and is_result(folder)):
        return False
    record = read_json(folder / RESULT)
    names = record.get("files")
    if not names or not all((folder / str(name)).is_file() for name in names):
        return False
    options = plan.options.model_dump(mode="json")
    changed = [key for key, value in options.items() if record.get("options", {}).get(key) != value]
    if record.get("model", {}).get("sha256") != plan.digest:
        changed.append("model")
    if [f["sha256"] for f in record.get("inputs", [])] != [f["sha256"] for f in files]:
        changed.append("input")
    if changed:
        raise UserError(
            f"{folder} holds a result of another {', '.join(changed)}; replace it with --overwrite, or give another "
            "--out"
        )
    return True


def _read(source: Source, files: list[dict[str, str]], plan: Plan) -> Job:
    """Read and check; what cannot be sampled fails here, before any time is spent."""
    stack, model, notices = source.read(), plan.model, []
    if stack.alpha and stack.values.ndim == 4 and stack.values.shape[-1] == model.image_channels + 1:
        stack = replace(stack, values=stack.values[..., :-1], alpha=False)
        notices.append("its alpha channel (opacity) was left out")
    prepared = []
    for number, values in enumerate(stack.values):
        try:
            prepared.append(model.prepare(values))
        except UserError as error:
            raise UserError(str(error) if len(stack.values) == 1 else f"slice {number}: {error}") from None
    images = torch.cat(prepared)
    height, width = images.shape[-2:]
    plan.model_for(height, width)
    if plan.large(height, width) and plan.tiled is None:
        notices.append(f"taken whole: {plan.why_whole}")
    notices += _remarks(images, stack, model)
    if stack.headers:
        blank = Samples(*(torch.zeros(1, size, height, width) for size in (1, model.num_classes)), torch.ones(1, 1), 0)
        medical("highdicom", "writing DICOM SEG")
        try:
            to_dicom_seg(blank, stack.headers[:1], model.info)
        except UserError as error:
            stack = replace(stack, headers=())
            notices.append(f"without fused.dcm: {error}")
    return Job(source, stack, images, files, tuple(notices))


def _remarks(images: Tensor, stack: Stack, model: StochasticSegmenter) -> list[str]:
    """On what can be sampled, but is hardly meant."""
    low, high = (float(v) for v in torch.aminmax(images))
    raw = f"its intensities {stack.values.min():g}..{stack.values.max():g}"
    ask = "what the model was trained on; are they in the same units?"
    remarks = []
    if max(-low, high) > FAR:
        remarks.append(f"{raw} reach {max(-low, high):.0f} standard deviations from {ask}")
    elif 0 < high - low < FLAT:
        remarks.append(f"{raw} differ by {high - low:.2g} standard deviations of {ask}")
    height, width = images.shape[-2:]
    rows, columns = (part.stop - part.start for part in model.window(height, width))
    if rows * columns < SEEN * height * width:
        remarks.append(
            f"the model labels the central {rows}×{columns} of its {height}×{width} pixels, all others are background; "
            "crop it around what is sought, to the size of the images the model was trained on"
        )
    return remarks


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
    n, classes = options.samples, plan.model.num_classes
    model, step = plan.model_for(h, w), _slices_at_once(jobs[0], n)
    kind = torch.uint8 if label_type(classes) is np.uint8 else torch.int32
    labels, mean, weights = torch.empty(s, n, h, w, dtype=kind), torch.empty(s, classes, h, w), torch.empty(s, n)
    began, evaluations = time.perf_counter(), 1
    for start in range(0, s, step):
        part = slice(start, min(start + step, s))

        def report(done: int, calls: int, part: slice = part) -> None:
            advance(len(jobs) * (part.start + (part.stop - part.start) * done / calls) / s)

        drawn = model.sample(images[part], n, seed=options.seed, progress=report, **options.sampling)
        labels[part], mean[part], weights[part] = drawn.labels, drawn.mean, drawn.weights
        evaluations = drawn.evaluations
        advance(len(jobs) * part.stop / s)
    seconds, start = time.perf_counter() - began, 0
    for job in jobs:
        own = slice(start, start + len(job.images))
        job.samples = Samples(labels[own], mean[own], weights[own], options.seed, evaluations)
        job.seconds = seconds * len(job.images) / s
        start = own.stop


def _write(job: Job, plan: Plan, folder: Path) -> None:
    assert job.samples is not None
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
        "evaluations": job.samples.evaluations,
        "tiled": plan.large(h, w) and plan.tiled is not None,
        "notices": list(job.notices),
        "seconds": round(job.seconds, 3),
        "device": str(model.device),
        "versions": _versions(),
    }
    write_result(folder, job.samples, job.stack, model.info, facts, model.name)
    job.samples = None  # its memory is wanted for the next ones


def _versions() -> dict[str, str]:
    versions = {"stochseg": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "pillow", "tifffile", "nibabel", "pydicom", "highdicom"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
