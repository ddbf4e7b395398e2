"""The worker: one process per device, which keeps models in memory and draws samples."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from stochseg.data.readers.nifti import Slicing
from stochseg.errors import UserError
from stochseg.inference.jobs import Job, describe, read_job, sample_batch
from stochseg.inference.pipeline import attempt, hash_files
from stochseg.inference.plan import Plan, PredictOptions
from stochseg.inference.points import Lesion, Point
from stochseg.inference.result_folder import write_result
from stochseg.inference.scans import predict_lesions
from stochseg.inference.sources import Source, stem
from stochseg.inference.writers import Prediction
from stochseg.memory import release_freed_memory
from stochseg.models import StochasticSegmenter, load
from stochseg.models.sampling import SamplingOptions
from stochseg.studio.findings import Findings
from stochseg.studio.maps import Array, display_affine, nifti_bytes, png_bytes, spaced_affine, write_bytes
from stochseg.studio.settings import Limits
from stochseg.studio.store import INPUT, PAGE, RESULT, Json
from stochseg.studio.tasks import Message, Task

MIN_PAUSE = 0.15
"""Seconds between two reports of progress."""
TITLES = {
    "lidc": "Lung nodules in CT slices",
    "lidc-3d": "Lung nodules in CT volumes",
    "papila": "Optic disc and cup in fundus crops",
}
SOURCES = {
    "lidc": "LIDC-IDRI (CC BY 3.0)",
    "lidc-3d": "LIDC-IDRI (CC BY 3.0)",
    "papila": "PAPILA (Kovalyk et al. 2022)",
}
LICENSES = {name: f"Weights: MIT; trained on {of}. For research, not for diagnosis." for name, of in SOURCES.items()}
log = logging.getLogger(__name__)


class Cancelled(Exception):
    """All jobs of the batch were cancelled."""


def work(pipe: Connection, models: dict[str, str], device: str, limits: Limits) -> None:
    """The loop of a worker; it ends with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    worker = Worker(pipe, models, device, limits)
    try:
        worker.tell("ready", data={"models": [worker.describe(name) for name in models]})
        while True:
            message = pipe.recv()
            if isinstance(message, list):  # a cancellation may come too late
                worker.run(message)
                worker.tell("idle")
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the server has ended
        return


@dataclass
class Worker:
    """Draws samples for the server at the other end of a pipe.

    models: paths by name; device: by name.
    """

    pipe: Connection
    models: dict[str, str]
    device: str
    limits: Limits
    _loaded: OrderedDict[str, StochasticSegmenter] = field(default_factory=OrderedDict)
    _cancelled: set[str] = field(default_factory=set)
    _streamed: set[str] = field(default_factory=set)
    _told: float = 0.0

    def tell(self, kind: str, job: str = "", data: Json | None = None) -> None:
        """Send a message to the server."""
        self.pipe.send(Message(kind, job, data or {}))

    def model(self, path: str) -> StochasticSegmenter:
        """A model by its path; the ones used last stay in memory."""
        if path not in self._loaded:
            while len(self._loaded) >= self.limits.models:
                self._loaded.popitem(last=False)
            self._loaded[path] = load(path, device=self.device)
        self._loaded.move_to_end(path)
        return self._loaded[path]

    def describe(self, name: str) -> Json:
        """Facts about a model for its users."""
        model = self.model(self.models[name])
        info, defaults = model.info, SamplingOptions().or_default(model.default_sampling())
        takes_evaluations = "evaluations" in model.sampling_choices
        most = min(self.limits.evaluations, model.max_evaluations or self.limits.evaluations)
        return {
            "name": name,
            "title": TITLES.get(name, f"{info.name} ({model.name})"),
            "spatial_dims": info.spatial_dims,
            "image_channels": info.image_channels,
            "class_names": list(info.names),
            "palette": list(info.colors),
            "takes_points": info.preparation is not None,
            "takes_evaluations": takes_evaluations,
            "rater_names": list(model.rater_names),
            "units": "" if info.preparation is None else info.preparation.units,
            "license_note": LICENSES.get(name),
            "limits": {"samples": self.limits.samples, "evaluations": most},
            "defaults": {
                "samples": min(16, self.limits.samples),
                "evaluations": defaults.evaluations if takes_evaluations else None,
                "noise": defaults.noise or "independent",
                "seed": 0,
            },
        }

    # --- a batch of jobs ---

    def run(self, tasks: Sequence[Task]) -> None:
        """Do jobs, alone or together, and tell how each ended."""
        self._cancelled.clear()
        self._streamed.clear()
        start = time.perf_counter()
        for task in tasks:
            self.tell("progress", task.id, {"done": 0, "total": 1, "what": "loading"})
        try:
            plan, problem = attempt(partial(self._plan, tasks[0]))
            if plan is None:
                self._end(tasks, problem, start)
            elif tasks[0].point is not None:
                _, problem = attempt(partial(self._segment_lesion, tasks[0], plan))
                self._end(tasks, problem, start)
            else:
                self._draw(tasks, plan, start)
        except Cancelled:
            self._end(tasks, "", start)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # a fault of ours must not end the worker
            log.exception("job failed")
            self._end(tasks, f"internal error ({type(error).__name__}: {error}); report it with the input", start)
        release_freed_memory()

    def _plan(self, task: Task) -> Plan:
        return Plan(self.model(task.model_path), PredictOptions.parse(task.options, where="job"), task.model)

    def _draw(self, tasks: Sequence[Task], plan: Plan, start: float) -> None:
        jobs: list[tuple[Task, Job]] = []
        for task in tasks:
            source = _source(task)
            job, problem = attempt(partial(_read, source, plan))
            if job is None:
                self._end([task], problem, start)
            else:
                jobs.append((task, job))
        if not jobs:
            return
        drawn, batch = [task for task, _ in jobs], [job for _, job in jobs]
        watch = partial(self._show, drawn[0], batch[0]) if len(batch) == 1 else None
        _, problem = attempt(partial(sample_batch, batch, plan, partial(self._advance, drawn), watch))
        for task, job in jobs:
            failure = problem
            if not failure and task.id not in self._cancelled:
                _, failure = attempt(partial(self._write, task, job, plan))
            self._end([task], failure, start)

    def _write(self, task: Task, job: Job, plan: Plan) -> None:
        assert job.result is not None
        self.tell("progress", task.id, {"done": 1, "total": 1, "what": "analyzing"})
        prediction = Prediction(job.result, job.stack, plan.model.info, plan.model.name, calibration=plan.calibration)
        write_result(Path(task.folder) / RESULT, prediction, describe(job, plan, job.result))
        self._write_page(task, job.seconds)

    def _segment_lesion(self, task: Task, plan: Plan) -> None:
        source, start = _source(task), time.perf_counter()
        lesion = Lesion("1", (_file_point(task),), where="point")
        out = Path(task.folder) / "work"
        try:
            outcomes = predict_lesions(
                plan.model,
                source.files if len(source.files) == 1 else source.files[0].parent,
                [lesion],
                out,
                plan.options,
                origin=plan.origin,
                progress=lambda done, total: self._advance([task], done / total),
                watch=partial(self._show_lesion, task),
            )
            (folder,) = (outcome.folder for outcome in outcomes if outcome.folder is not None)
            shutil.rmtree(Path(task.folder) / RESULT, ignore_errors=True)
            folder.rename(Path(task.folder) / RESULT)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        self.tell("progress", task.id, {"done": 1, "total": 1, "what": "analyzing"})
        self._write_page(task, time.perf_counter() - start)

    def _write_page(self, task: Task, seconds: float) -> None:
        facts = _facts(task)
        file = Path(task.input) / "raters.npy"
        raters = np.load(file) if file.is_file() else None
        findings = Findings.read(Path(task.folder) / RESULT, facts, raters)
        page = Path(task.folder) / PAGE
        page.mkdir(exist_ok=True)
        findings.write(page, seconds=round(seconds, 3), model=task.model)
        if task.id not in self._streamed:
            for i, weight in enumerate(findings.samples.weights.tolist()):
                self.tell("sample", task.id, {"index": i, "weight": weight})

    def _end(self, tasks: Sequence[Task], problem: str, start: float) -> None:
        for task in tasks:
            if task.id in self._cancelled:
                self.tell("cancelled", task.id)
            elif problem:
                self.tell("failed", task.id, {"message": problem.replace(f"{task.input}/files/", "")})
            else:
                self.tell("done", task.id, {"seconds": round(time.perf_counter() - start, 3)})

    # --- while samples are drawn ---

    def _advance(self, tasks: Sequence[Task], done: float) -> None:
        """Report progress, and stop if all jobs were cancelled meanwhile."""
        while self.pipe.poll():
            message = self.pipe.recv()  # EOFError: the server has ended
            if isinstance(message, str):
                self._cancelled.add(message)
        if self._cancelled.issuperset(task.id for task in tasks):
            raise Cancelled
        if time.monotonic() - self._told < MIN_PAUSE:
            return
        self._told = time.monotonic()
        for task in tasks:
            part = min(1.0, done / len(tasks))
            self.tell("progress", task.id, {"done": round(part, 3), "total": 1, "what": "sampling"})

    def _show(self, task: Task, job: Job, first: int, labels: Array, weights: Array) -> None:
        """Write samples "s m h w" of a whole input that were just drawn, and tell the server."""
        lattice = job.stack.lattice
        placed = (
            None if lattice is None else display_affine(lattice.affine, lattice.slicing, job.stack.values.shape[:3])
        )
        self._show_maps(task, first, labels, weights, placed, {})

    def _show_lesion(self, task: Task, first: int, labels: Array, weights: Array, start: tuple[int, int, int]) -> None:
        """Write samples "s m h w" of a part of a scan that were just drawn, and tell the server where they are."""
        facts, (s, h, w) = _facts(task), start
        axis, transposed, flipped = facts["slicing"]
        placed = display_affine(facts["affine"], Slicing(axis, transposed, tuple(flipped)), facts["shape"])
        placed[:, 3] = placed @ [w, h, s, 1]
        shape = [labels.shape[0], *labels.shape[2:]]
        self._show_maps(task, first, labels, weights, placed, {"offset": [s, h, w], "shape": shape})

    def _show_maps(
        self, task: Task, first: int, labels: Array, weights: Array, placed: Array | None, facts: Json
    ) -> None:
        page = Path(task.folder) / PAGE
        page.mkdir(exist_ok=True)
        flat = len(task.shape) == 3
        for i in range(labels.shape[1]):
            maps = labels[:, i].astype(np.uint8)
            content = (
                png_bytes(maps[0]) if flat else nifti_bytes(maps, spaced_affine(None) if placed is None else placed)
            )
            write_bytes(page / f"sample-{first + i:05d}.{'png' if flat else 'nii.gz'}", content)
            self.tell("sample", task.id, {"index": first + i, "weight": float(weights[i]), **facts})
            self._streamed.add(task.id)


def _file_point(task: Task) -> Point:
    """The point of a job in the axes of its file."""
    facts = _facts(task)
    if facts["slicing"] is None or task.point is None:
        raise UserError("a point needs a volume with a position in space; export it as NIfTI or DICOM")
    axis, transposed, flipped = facts["slicing"]
    index, slicing = [0.0, 0.0, 0.0], Slicing(axis, transposed, tuple(flipped))
    for at, value, length in zip(slicing.axes, reversed(task.point), facts["shape"], strict=True):
        index[at] = length - 1 - value if at in slicing.flipped else value
    return index[0], index[1], index[2]


def _facts(task: Task) -> Json:
    facts: Json = json.loads((Path(task.input) / INPUT).read_text(encoding="utf-8"))
    return facts


def _read(source: Source, plan: Plan) -> Job:
    return read_job(source, hash_files(source), plan)


def _source(task: Task) -> Source:
    files = tuple(Path(task.input) / name for name in _facts(task)["files"])
    return Source(stem(files[0].name), files)
