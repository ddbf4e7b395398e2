"""The workspace on disk: inputs, jobs and their append-only events. Nothing about a job lives in memory only.

    workspace/inputs/ID/   input.json, files/ (as uploaded), raters.npy, shown/ (what the page shows)
    workspace/jobs/ID/     request.json, events.jsonl, result/ (as `stochseg predict` writes it), page/

The server is the only writer of events. The last line of a log may be cut short if the server was killed; it is
removed when the log is opened again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.files import sync, write_text

State = Literal["queued", "running", "done", "failed", "cancelled"]
FINISHED: tuple[State, ...] = ("done", "failed", "cancelled")
ID = r"[0-9a-f]{16}"
INPUT, REQUEST, EVENTS = "input.json", "request.json", "events.jsonl"
RESULT, PAGE, SHOWN = "result", "page", "shown"

_PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
SUFFIXES = (".nii.gz", ".nii", *_PICTURES, ".nrrd", ".mha", ".dcm", ".zip")
"""Suffixes that an uploaded file keeps; files of other names are DICOM or nothing."""

Json = dict[str, Any]


def safe_name(number: int, name: str) -> str:
    """The name under which an upload is stored: of its own name, only a known suffix is used.

    >>> safe_name(3, "../../etc/scan.NII.GZ"), safe_name(0, "IM0001")
    ('00003.nii.gz', '00000')
    """
    return f"{number:05d}{next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), '')}"


def new_id() -> str:
    """A name that cannot be guessed."""
    return secrets.token_hex(8)


@dataclass
class JobRecord:
    """A job as the server knows it: read from its folder, changed by events only.

    folder: of the job; request: as it was accepted; events: their number; watched: when somebody last asked for it, by
    the monotonic clock; deaths: workers that it may have ended.
    """

    id: str
    folder: Path
    request: Json
    created: float
    state: State = "queued"
    error: Json | None = None
    finished: float | None = None
    events: int = 0
    deaths: int = 0
    watched: float = field(default_factory=time.monotonic)

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in FINISHED

    def apply(self, data: Json) -> None:
        """Follow an event of the type `state`."""
        self.state, self.error = data["state"], data.get("error")
        self.deaths = data.get("deaths", self.deaths)
        if self.is_finished:
            self.finished = data["time"]


class Store:
    """The folder of a studio."""

    def __init__(self, root: Path):
        self.root, self.inputs, self.jobs = root, root / "inputs", root / "jobs"
        for folder in (self.inputs, self.jobs):
            folder.mkdir(parents=True, exist_ok=True)

    # --- inputs ---

    def input_folder(self, name: str) -> Path | None:
        """Folder of a complete input; None if there is none."""
        folder = self.inputs / name
        return folder if re.fullmatch(ID, name) and (folder / INPUT).is_file() else None

    def read_input(self, name: str) -> Json | None:
        """Facts about an input, None if there is none."""
        folder = self.input_folder(name)
        return None if folder is None else _read_json(folder / INPUT)

    def list_inputs(self) -> list[Json]:
        """All inputs, the newest first."""
        found = [facts for path in self.inputs.iterdir() if (facts := self.read_input(path.name)) is not None]
        return sorted(found, key=lambda facts: -facts["created"])

    def remove_unfinished_inputs(self) -> None:
        """Remove uploads that were not read to the end; for the start of the server."""
        for folder in self.inputs.iterdir():
            if self.input_folder(folder.name) is None:
                remove(folder)

    # --- jobs ---

    def create_job(self, request: Json, name: str | None = None) -> JobRecord:
        """Write a new job. name: its id, if its folder exists already."""
        record = JobRecord(name or new_id(), Path(), request, time.time())
        record.folder = self.jobs / record.id
        record.folder.mkdir(exist_ok=name is not None)
        write_text(record.folder / REQUEST, json.dumps({"created": record.created, **request}, indent=2) + "\n")
        self.append(record, "state", {"state": "queued"})
        return record

    def append(self, record: JobRecord, kind: str, data: Json) -> None:
        """Append an event; one of the type `state` is on the disk before this returns."""
        record.events += 1
        data = {**data, "time": round(time.time(), 3)} if kind == "state" else data
        line = json.dumps({"id": record.events, "type": kind, "data": data}, allow_nan=False)
        with (record.folder / EVENTS).open("ab") as log:
            log.write(line.encode() + b"\n")
            if kind == "state":
                log.flush()
                os.fsync(log.fileno())
        if kind == "state":
            record.apply(data)

    def load_jobs(self) -> list[JobRecord]:
        """Read all jobs, the oldest first; folders that are no jobs, or were being created, are removed."""
        found = []
        for folder in sorted(self.jobs.iterdir()):
            record = _load(folder)
            if record is None:
                remove(folder)
            else:
                found.append(record)
        return sorted(found, key=lambda record: record.created)

    def used_by(self, records: Iterator[JobRecord]) -> set[str]:
        """Inputs that jobs refer to."""
        return {str(record.request["input"]) for record in records}


def read_events(folder: Path, after: int) -> list[Json]:
    """Complete events of a job behind a number; damaged lines are skipped."""
    try:
        content = (folder / EVENTS).read_bytes()
    except FileNotFoundError:
        return []
    lines = content.split(b"\n")[:-1]  # the last part is empty, or being written
    return [event for line in lines[after:] if (event := _parse_event(line)) is not None]


def _parse_event(line: bytes) -> Json | None:
    try:
        event = parse_json(line, EVENTS)
        sound = isinstance(event["id"], int) and isinstance(event["data"], dict)
        if event["type"] == "state":
            sound &= event["data"]["state"] in get_args(State) and isinstance(event["data"]["time"], (int, float))
    except (UserError, KeyError, TypeError):
        return None
    return event if sound else None


def _load(folder: Path) -> JobRecord | None:
    request = _read_json(folder / REQUEST) if re.fullmatch(ID, folder.name) else None
    created = None if request is None else request.pop("created", None)
    if request is None or not isinstance(created, (int, float)) or "input" not in request:
        return None
    record = JobRecord(folder.name, folder, request, float(created))
    _cut_torn_line(folder / EVENTS)
    for event in read_events(folder, 0):
        record.events = event["id"]
        if event["type"] == "state":
            record.apply(event["data"])
    return record


def _cut_torn_line(file: Path) -> None:
    content = file.read_bytes() if file.is_file() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
        sync(file)


def _read_json(file: Path) -> Json | None:
    try:
        found = parse_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UserError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def remove(folder: Path) -> None:
    """Remove a folder: first its name, so that nobody sees a part of it."""
    doomed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.gone")
    try:
        os.replace(folder, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # removed meanwhile
            continue
    return total
