"""The queue and its workers: jobs are given to worker processes, one per device, and their messages become events."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from stochseg.studio.desk import start_shielded
from stochseg.studio.errors import Refusal, error_content
from stochseg.studio.launch import start_work
from stochseg.studio.settings import Settings
from stochseg.studio.store import JobRecord, Json, State, Store, remove, size_of
from stochseg.studio.tasks import Message, Task

MAX_DEATHS = 3
"""Workers that a job may lose: one may be ended from outside, or by another job that was drawn with it."""
CANCEL_SECONDS = 5.0
"""Time in which a worker must react to a cancellation; it is ended and replaced then."""
RESTART_SECONDS = 2.0
MAX_BATCH = 8
"""Jobs that are drawn together."""
TICK = 0.5
HOUSEKEEPING_SECONDS = 60.0
_SPAWN = multiprocessing.get_context("spawn")
log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """A worker process. jobs: that it is doing; deadline: when it is ended, by the monotonic clock."""

    device: str
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    jobs: list[str] = field(default_factory=list)
    deadline: float | None = None


class Engine:
    """All jobs, in the loop of the server; only the threads that listen to workers are others."""

    def __init__(self, settings: Settings, store: Store):
        self.settings, self.store = settings, store
        self.jobs: dict[str, JobRecord] = {}
        self.queue: deque[str] = deque()
        self.models: dict[str, Json] = {}
        self.counts: Counter[str] = Counter()
        self.busy_seconds = 0.0
        self._workers: list[_Worker] = []
        self._watchers: Counter[str] = Counter()
        self._changed: dict[str, asyncio.Event] = {}
        self._ready = asyncio.Event()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    # --- life ---

    async def start(self) -> None:
        """Read the workspace, queue unfinished jobs again, and start the workers."""
        self.store.remove_unfinished_inputs()
        for record in self.store.load_jobs():
            self.jobs[record.id] = record
            model = record.request["model"]
            if not record.is_finished and not record.request.get("model_path") and model not in self.settings.models:
                self._set(record, "failed", error_content(f"the model {model!r} is not offered any more")["error"])
            elif not record.is_finished:
                self._set(record, "queued")
                self.queue.append(record.id)
        for device in self.settings.devices:
            self._start_worker(device)
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._keep_house())]

    async def close(self) -> None:
        """Stop; unfinished jobs stay on disk and are queued again at the next start."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for event in self._changed.values():
            event.set()
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            await asyncio.to_thread(worker.process.join, 5)

    @property
    def closing(self) -> bool:
        """Whether the server is shutting down."""
        return self._closing

    async def known_models(self) -> dict[str, Json]:
        """Facts about the models; a worker tells them when it has started."""
        try:
            await asyncio.wait_for(self._ready.wait(), 60)
        except TimeoutError:
            raise Refusal(503, "the worker is still starting; try again", retry_after=5) from None
        return self.models

    # --- jobs ---

    def submit(self, request: Json) -> JobRecord:
        """Queue a job.

        Raises:
            Refusal: 429 if the queue is full.
        """
        if self._closing:
            raise Refusal(503, "the server is shutting down; try again", retry_after=10)
        limit = self.settings.limits.queue
        if len(self.queue) >= limit:
            self.counts["refused"] += 1
            raise Refusal(
                429,
                f"{limit} jobs are waiting, the limit",
                remedy="try again later",
                retry_after=max(1, min(60, len(self.queue) // 4)),
            )
        record = self.store.create_job(request)
        self.counts["submitted"] += 1
        self.jobs[record.id] = record
        self.queue.append(record.id)
        self._dispatch()
        return record

    def adopt(self, name: str, request: Json) -> JobRecord:
        """Register a job whose result is already in its folder."""
        record = self.store.create_job(request, name)
        self.jobs[name] = record
        self._append(record, "result", {})
        self._set(record, "done")
        return record

    def position(self, record: JobRecord) -> int | None:
        """Place in the queue, counted from 1; None if it does not wait."""
        return self.queue.index(record.id) + 1 if record.id in self.queue else None

    def cancel(self, record: JobRecord, reason: str) -> None:
        """Stop a job that is not finished."""
        if record.is_finished:
            return
        if record.id in self.queue:
            self.queue.remove(record.id)
        self.counts["cancelled"] += 1
        self._set(record, "cancelled", error_content(reason)["error"])
        for worker in self._workers:
            if record.id in worker.jobs:
                with suppress(OSError):
                    worker.pipe.send(record.id)
                if all(self._is_over(name) for name in worker.jobs):
                    worker.deadline = time.monotonic() + CANCEL_SECONDS

    def _is_over(self, name: str) -> bool:
        return name not in self.jobs or self.jobs[name].is_finished

    def delete(self, record: JobRecord) -> None:
        """Cancel and remove a job."""
        self.cancel(record, "deleted")
        del self.jobs[record.id]
        self._notify(record.id)
        remove(record.folder)

    # --- watching ---

    def watch(self, job: str, step: int) -> None:
        """Count readers of the events of a job; step: 1 or -1."""
        self._watchers[job] += step
        if self._watchers[job] <= 0:
            del self._watchers[job]
            self._changed.pop(job, None)
        if job in self.jobs:
            self.jobs[job].watched = time.monotonic()

    async def wait(self, job: str, seconds: float) -> None:
        """Wait until something happens to a job, or the time is over."""
        event = self._changed.setdefault(job, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)

    def _notify(self, job: str) -> None:
        if (event := self._changed.pop(job, None)) is not None:
            event.set()

    def _append(self, record: JobRecord, kind: str, data: Json) -> None:
        self.store.append(record, kind, data)
        self._notify(record.id)

    def _set(self, record: JobRecord, state: State, error: Json | None = None, **facts: Any) -> None:
        if record.is_finished:
            return
        self._append(record, "state", {"state": state, "error": error, **facts})

    # --- workers ---

    def _start_worker(self, device: str) -> None:
        ours, theirs = _SPAWN.Pipe()
        args = (theirs, self.settings.models, device, self.settings.limits)
        process = _SPAWN.Process(target=start_work, args=args, daemon=True, name=f"stochseg-{device}")
        start_shielded(process)
        theirs.close()
        worker = _Worker(device, process, ours)
        self._workers.append(worker)
        loop = asyncio.get_running_loop()

        def tell(message: Message | None) -> None:
            loop.call_soon_threadsafe(self._handle, worker, message)

        threading.Thread(target=_listen, args=(ours, tell), daemon=True).start()

    def _handle(self, worker: _Worker, message: Message | None) -> None:
        if self._closing or worker not in self._workers:
            return
        if message is None:
            self._replace(worker)
            return
        record = self.jobs.get(message.job)
        if message.kind == "ready":
            self.models = {facts["name"]: facts for facts in message.data["models"]}
            self._ready.set()
            worker.ready = True
        elif message.kind == "idle":
            worker.jobs, worker.deadline = [], None
        elif record is not None and not record.is_finished:
            self._follow(record, message)
        if message.kind in ("ready", "idle"):
            self._dispatch()

    def _follow(self, record: JobRecord, message: Message) -> None:
        """Turn a message about a job into events."""
        if message.kind in ("progress", "sample"):
            self._append(record, message.kind, message.data)
        elif message.kind == "done":
            self.counts["done"] += 1
            self.busy_seconds += message.data["seconds"]
            self._append(record, "result", {})
            self._set(record, "done")
        elif message.kind == "failed":
            self.counts["failed"] += 1
            self._set(record, "failed", error_content(message.data["message"])["error"])

    def _replace(self, worker: _Worker) -> None:
        """Start another worker for one that died, and queue its jobs again, first of all."""
        self._workers.remove(worker)
        self.counts["worker_deaths"] += 1
        log.warning("the worker of %s ended; it is replaced", worker.device)
        for name in reversed(worker.jobs):
            if self._is_over(name):
                continue
            record = self.jobs[name]
            deaths = record.deaths + 1
            if deaths >= MAX_DEATHS:
                self.counts["failed"] += 1
                why = f"its worker died {deaths} times, perhaps for lack of memory; use fewer samples"
                self._set(record, "failed", error_content(why)["error"], deaths=deaths)
            else:
                self._set(record, "queued", deaths=deaths)
                self.queue.appendleft(name)
        # One that dies while it starts may do so again at once.
        asyncio.get_running_loop().call_later(0 if worker.ready else RESTART_SECONDS, self._restart, worker.device)

    def _restart(self, device: str) -> None:
        if not self._closing:
            self._start_worker(device)

    def _dispatch(self) -> None:
        for worker in self._workers:
            if worker.ready and not worker.jobs and self.queue:
                batch = self._next_batch()
                worker.jobs = [task.id for task in batch]
                worker.deadline = time.monotonic() + self.settings.limits.job_seconds
                for task in batch:
                    self._set(self.jobs[task.id], "running")
                try:
                    worker.pipe.send(batch)
                except OSError:  # it died; its listener says so
                    continue

    def _next_batch(self) -> list[Task]:
        """The first job of the queue, and later ones that can be drawn with it."""
        first = self._task(self.jobs[self.queue.popleft()])
        batch = [first]
        for name in list(self.queue) if not self.jobs[first.id].deaths else ():
            task = self._task(self.jobs[name])
            if len(batch) < MAX_BATCH and first.joins(task) and not self.jobs[name].deaths:
                self.queue.remove(name)
                batch.append(task)
        return batch

    def _task(self, record: JobRecord) -> Task:
        request = record.request
        folder = self.store.inputs / request["input"]
        point = request["points"][0] if request["points"] else None
        return Task(
            record.id,
            str(record.folder),
            str(folder),
            request["model"],
            request.get("model_path") or self.settings.models[request["model"]],
            request["options"],
            None if point is None else (point[0], point[1], point[2]),
            tuple(request["shape"]),
        )

    # --- clocks ---

    async def _watch(self) -> None:
        """End workers that are late, and cancel abandoned jobs."""
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            for worker in list(self._workers):
                if worker.deadline is not None and now > worker.deadline:
                    for name in worker.jobs:
                        if not self._is_over(name):
                            self.counts["failed"] += 1
                            self._set(self.jobs[name], "failed", self._late())
                    worker.deadline = None
                    worker.process.kill()  # its listener starts another
            for record in list(self.jobs.values()):
                if record.is_finished:
                    continue
                if self._watchers[record.id]:
                    record.watched = now
                elif now - record.watched > self.settings.limits.abandoned_seconds and not record.request.get("keep"):
                    self.cancel(record, "abandoned: nobody asked for it; submit it with keep=true if nobody will")

    def _late(self) -> Json:
        seconds = self.settings.limits.job_seconds
        remedy = "use fewer samples or evaluations, or a point"
        error: Json = error_content(f"took more than {seconds:g} s, the limit", remedy=remedy)["error"]
        return error

    async def _keep_house(self) -> None:
        """Remove what has expired."""
        while True:
            await asyncio.to_thread(self._expire, dict(self.jobs))
            for name in [name for name, record in self.jobs.items() if not record.folder.is_dir()]:
                del self.jobs[name]
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    def _expire(self, jobs: dict[str, JobRecord]) -> None:
        limits, now = self.settings.limits, time.time()
        finished = sorted((r for r in jobs.values() if r.is_finished), key=lambda r: r.finished or 0.0)
        room = limits.keep_mb * 10**6 - size_of(self.store.root)
        for record in finished:
            old = now - (record.finished or now) > limits.keep_days * 86400
            if old or room < 0:
                room += size_of(record.folder)
                remove(record.folder)
                jobs.pop(record.id)
        used = self.store.used_by(iter(jobs.values()))
        for folder in self.store.inputs.iterdir():
            age = now - folder.stat().st_mtime
            if folder.name not in used and (age > limits.keep_days * 86400 or (room < 0 and age > 3600)):
                remove(folder)


def _listen(pipe: Connection, tell: Callable[[Message | None], object]) -> None:
    """Pass the messages of a worker on; None when it has ended."""
    with suppress(RuntimeError):  # the loop has ended
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                tell(None)
                return
            tell(message)
