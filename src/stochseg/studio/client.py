"""A client of the studio's API; it needs the standard library only."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from stochseg.errors import UserError

Json = dict[str, Any]
FINISHED = ("done", "failed", "cancelled")
MAX_WAIT = 60.0
"""Seconds to wait at most before a request that was refused with 429 is repeated."""


class StudioError(UserError):
    """A refusal of the server. status: of HTTP; facts: message, expected, got and remedy; retry_after: seconds."""

    def __init__(self, status: int, facts: Mapping[str, Any], retry_after: float | None = None):
        super().__init__(str(facts.get("message") or f"HTTP {status}"))
        self.status, self.facts, self.retry_after = status, dict(facts), retry_after


@dataclass(frozen=True)
class Event:
    """Something that happened to a job. id: its number in the job; kind: state, progress, sample or result."""

    id: int
    kind: str
    data: Json


class Client:
    """Talks to a studio.

    Args:
        url: address of the server, such as http://127.0.0.1:8765.
        token: if the server needs one.
        timeout: seconds to wait for an answer.

    Every method raises a `StudioError` if the server refuses, and an `OSError` if it cannot be reached.

    >>> Client("http://127.0.0.1:8765").url
    'http://127.0.0.1:8765'
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 120.0):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"url: expected an address such as http://127.0.0.1:8765, got {url!r}")
        self.url, self.timeout, self._parts = url.rstrip("/"), timeout, parts
        self._headers = {"X-Stochseg": "1", **({"Authorization": f"Bearer {token}"} if token else {})}

    # --- inputs ---

    def models(self) -> list[Json]:
        """Facts about the models."""
        found: list[Json] = self._json("GET", "/api/v1/models")
        return found

    def examples(self) -> list[Json]:
        """Examples that the server can make."""
        found: list[Json] = self._json("GET", "/api/v1/examples")
        return found

    def example(self, name: str, number: int = 0) -> Json:
        """Make an example; returns the input."""
        return self._post("/api/v1/inputs", {"example": name, "number": number})

    def upload(
        self,
        *files: str | Path,
        raters: Sequence[str | Path] = (),
        spacing: float | tuple[float, float] | None = None,
    ) -> Json:
        """Upload an image, a volume, a zip, or the files of a DICOM series; returns the input.

        Args:
            files: paths on this machine.
            raters: label maps of the same size.
            spacing: millimeters per pixel (row, column) of a picture.
        """
        fields = {}
        if spacing is not None:
            fields["spacing"] = ",".join(str(mm) for mm in (spacing if isinstance(spacing, tuple) else (spacing,)))
        parts = [("files", Path(file)) for file in files] + [("raters", Path(file)) for file in raters]
        return self.upload_parts([(key, file.name, file.read_bytes()) for key, file in parts], fields)

    def upload_parts(
        self, parts: Sequence[tuple[str, str, bytes]], fields: Mapping[str, str] | None = None, path: str = "inputs"
    ) -> Json:
        """Upload contents as (field, file name, content)."""
        boundary = secrets.token_hex(16)
        body = bytearray()
        for key, value in (fields or {}).items():
            body += f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, name, content in parts:
            safe = name.replace('"', "_").replace("\r", "_").replace("\n", "_")
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"; filename="{safe}"\r\n\r\n'
            body += head.encode() + content + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        found: Json = self._json("POST", f"/api/v1/{path}", bytes(body), kind)
        return found

    # --- jobs ---

    def submit(self, input: str, model: str, *, wait: float = 0.0, **parameters: Any) -> Json:
        """Queue a job; returns it.

        Args:
            input: id of an input.
            model: name of a model.
            wait: seconds to repeat the request if the queue is full.
            parameters: samples, evaluations, seed, noise, points, slices, rater, allow_unusual_input, keep.
        """
        until = time.monotonic() + wait
        while True:
            try:
                return self._post("/api/v1/jobs", {"input": input, "model": model, **parameters})
            except StudioError as error:
                pause = min(error.retry_after or 1.0, MAX_WAIT)
                if error.status != 429 or time.monotonic() + pause > until:
                    raise
                time.sleep(pause)

    def job(self, name: str) -> Json:
        """One job."""
        found: Json = self._json("GET", f"/api/v1/jobs/{name}")
        return found

    def jobs(self) -> list[Json]:
        """All jobs."""
        found: list[Json] = self._json("GET", "/api/v1/jobs")
        return found

    def cancel(self, name: str) -> Json:
        """Stop a job."""
        return self._post(f"/api/v1/jobs/{name}/cancel", {})

    def delete(self, name: str) -> None:
        """Remove a job."""
        self.request("DELETE", f"/api/v1/jobs/{name}")

    def events(self, name: str, after: int = 0) -> Iterator[Event]:
        """Events of a job behind a number, until it is finished or the connection ends."""
        connection = self._connect()
        try:
            connection.request("GET", f"/api/v1/jobs/{name}/events?after={after}", headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _refusal(answer, answer.read())
            yield from _parse_events(answer)
        finally:
            connection.close()

    def wait(self, name: str, timeout: float = 600.0) -> Json:
        """Wait until a job is finished, also over a restart of the server; returns it.

        Raises:
            StudioError: if it failed or was cancelled.
            TimeoutError: if it takes longer.
        """
        until, seen = time.monotonic() + timeout, 0
        while True:
            try:
                for event in self.events(name, seen):
                    seen = event.id
                    if time.monotonic() > until:
                        raise TimeoutError(f"job {name} is not finished after {timeout:g} s")
                job = self.job(name)
            except (http.client.HTTPException, ConnectionError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
                continue
            if job["state"] == "done":
                return job
            if job["state"] in FINISHED:
                raise StudioError(409, job["error"] or {"message": f"the job was {job['state']}"})
            if time.monotonic() > until:
                raise TimeoutError(f"job {name} is not finished after {timeout:g} s")

    def result(self, name: str) -> Json:
        """Readings, measurements and files of a finished job."""
        found: Json = self._json("GET", f"/api/v1/jobs/{name}/result")
        return found

    def sample(self, name: str, index: int) -> bytes:
        """The label map of one sample: PNG, or gzip NIfTI."""
        return self.request("GET", f"/api/v1/jobs/{name}/samples/{index}")

    def file(self, name: str, file: str) -> bytes:
        """The content of one file of a result."""
        return self.request("GET", f"/api/v1/jobs/{name}/files/{quote(file, safe='')}")

    # --- HTTP ---

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send any request; returns the content of the answer."""
        connection = self._connect()
        try:
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise _refusal(answer, content)
        return content

    def _json(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        return json.loads(self.request(method, path, body, headers))

    def _post(self, path: str, content: Json) -> Json:
        found: Json = self._json("POST", path, json.dumps(content).encode(), {"Content-Type": "application/json"})
        return found

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=self.timeout)


def _refusal(answer: http.client.HTTPResponse, content: bytes) -> StudioError:
    try:
        facts = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        facts = {"message": content[:200].decode(errors="replace")}
    retry = answer.headers.get("Retry-After", "")
    return StudioError(answer.status, facts, float(retry) if retry.isdecimal() else None)


def _parse_events(lines: http.client.HTTPResponse) -> Iterator[Event]:
    """Parse a stream of server-sent events."""
    number, kind, data = 0, "message", ""
    for raw in lines:
        line = raw.decode().rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and value.isdecimal():
            number = int(value)
        elif field == "event":
            kind = value
        elif field == "data":
            data += value
        elif not line and data:
            yield Event(number, kind, json.loads(data))
            kind, data = "message", ""
