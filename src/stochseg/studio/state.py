"""What all requests share: settings, workspace, queue and desk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from fastapi import Request

from stochseg.studio.desk import Desk
from stochseg.studio.engine import Engine
from stochseg.studio.errors import not_found
from stochseg.studio.settings import Settings
from stochseg.studio.store import JobRecord, Json, Store


class Studio:
    """The parts of a running server."""

    desk: Desk

    def __init__(self, settings: Settings, store: Store, engine: Engine):
        self.settings, self.store, self.engine = settings, store, engine
        self.runs: tuple[float, list[Json]] = (float("-inf"), [])
        """When the runs were listed, and what was found."""
        self.arrivals: dict[Path, asyncio.Task[Any]] = {}
        """Series that are being sent, each with the task that waits for its end."""
        self._background: set[asyncio.Task[Any]] = set()

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that nobody waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def log(self, text: str) -> None:
        """Tell the person who runs the server."""
        logging.getLogger("stochseg.studio").warning(text)

    def job(self, name: str) -> JobRecord:
        """A job by its id, as somebody asks for it."""
        record = self.engine.jobs.get(name)
        if record is None:
            raise not_found("job", name)
        record.watched = time.monotonic()
        return record

    def input(self, name: str) -> tuple[Path, Json]:
        """Folder and facts of an input."""
        facts = self.store.read_input(name)
        if facts is None:
            raise not_found("input", name)
        return self.store.inputs / name, facts

    def metrics(self) -> str:
        """Counters and gauges in the text format of Prometheus."""
        engine = self.engine
        states = Counter(record.state for record in engine.jobs.values())
        lines = []
        for name, kind, text, values in (
            ("jobs_total", "counter", "Jobs since the start, by what happened.", _labeled("event", engine.counts)),
            ("jobs", "gauge", "Jobs in the workspace, by state.", _labeled("state", states)),
            ("queue_length", "gauge", "Jobs that wait.", {"": len(engine.queue)}),
            ("busy_seconds_total", "counter", "Computing time of finished jobs.", {"": round(engine.busy_seconds, 3)}),
        ):
            lines += [f"# HELP stochseg_{name} {text}", f"# TYPE stochseg_{name} {kind}"]
            lines += [f"stochseg_{name}{label} {value}" for label, value in values.items()]
        return "\n".join(lines) + "\n"


def _labeled(label: str, counts: Counter[Any]) -> dict[str, float]:
    return {f'{{{label}="{key}"}}': value for key, value in sorted(counts.items())}


def studio_of(request: Request) -> Studio:
    """The studio of the application that handles a request."""
    studio: Studio = request.app.state.studio
    return studio
