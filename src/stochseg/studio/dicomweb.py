"""DICOMweb: PACS and viewers send a series with STOW-RS, `POST /dicom-web/studies`.

Programs send a series in one request or instance by instance, so instances are collected by their series, and become
an input once nothing more has come for a moment. An instance that is sent again replaces itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import mmap
import os
import re
import shutil
from email.message import Message
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from stochseg.errors import UserError
from stochseg.studio.errors import Refusal
from stochseg.studio.launch import read_instances, read_upload
from stochseg.studio.state import Studio, studio_of
from stochseg.studio.store import Json, new_id, remove

router = APIRouter(tags=["dicomweb"])
Shared = Annotated[Studio, Depends(studio_of)]
QUIET_SECONDS = 2.0
"""Time without a new instance after which a series is taken as complete."""
BODY = {
    "requestBody": {
        "required": True,
        "content": {'multipart/related; type="application/dicom"': {"schema": {"type": "string", "format": "binary"}}},
    }
}
NOT_A_DICOM_OBJECT = 0xC000
"""Failure reason of DICOM: cannot understand."""


@router.post("/studies", openapi_extra=BODY)
async def store_instances(request: Request, studio: Shared) -> Response:
    """Receive DICOM instances (STOW-RS). Their series appears among the inputs two seconds after its last instance."""
    boundary = _boundary(request.headers.get("content-type", ""))
    folder = studio.store.root / "incoming" / new_id()
    folder.mkdir(parents=True)
    try:
        with (folder / "body").open("wb") as target:
            async for part in request.stream():
                target.write(part)
        await run_in_threadpool(_write_parts, folder, boundary, studio.settings.limits.files)
        found = await studio.desk.run(read_instances, folder)
        for series in await run_in_threadpool(_collect, studio.store.root / "incoming", folder, found):
            _settle(studio, series)
    finally:
        await run_in_threadpool(shutil.rmtree, folder, True)
    failed = sum(facts is None for facts in found)
    status = 200 if not failed else 409 if failed == len(found) else 202
    return JSONResponse(_answer(found), status, media_type="application/dicom+json")


def _boundary(kind: str) -> bytes:
    message = Message()
    message["Content-Type"] = kind
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/related" or not isinstance(boundary, str) or not boundary:
        raise Refusal(
            415, "unknown content type", expected='multipart/related; type="application/dicom"; boundary=…', got=kind
        )
    return boundary.encode("latin-1", "replace")


def split_parts(body: bytes | mmap.mmap, boundary: bytes) -> list[slice]:
    """Find the contents of the parts of a multipart body.

    >>> body = b"--x\\r\\nContent-Type: a/b\\r\\n\\r\\none\\r\\n--x\\r\\n\\r\\ntwo\\r\\n--x--"
    >>> [body[part] for part in split_parts(body, b"x")]
    [b'one', b'two']
    """
    parts = []
    marks = list(re.finditer(rb"(?:^|\r\n)--" + re.escape(boundary) + rb"(--)?[ \t]*(?:\r\n|$)", body))
    for mark, following in itertools.pairwise(marks):
        if mark[1]:
            break
        # The line break that ended the delimiter may also be the empty line that ends the headers.
        start = body.find(b"\r\n\r\n", mark.end() - 2, following.start())
        if start >= 0:
            parts.append(slice(start + 4, following.start()))
    return parts


def _write_parts(folder: Path, boundary: bytes, most: int) -> None:
    """Replace the body of a request by a file per instance."""
    file = folder / "body"
    if file.stat().st_size == 0:
        raise Refusal(400, f"expected 1 to {most} instances, got an empty body")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as body:
        parts = split_parts(body, boundary)
        if not 0 < len(parts) <= most:
            raise Refusal(400, f"expected 1 to {most} instances, got {len(parts)}")
        for number, part in enumerate(parts):
            (folder / f"{number:05d}.dcm").write_bytes(body[part])
    file.unlink()


def _collect(incoming: Path, folder: Path, found: list[Json | None]) -> set[Path]:
    """Move instances to the folders of their series, which are returned."""
    series = set()
    for number, facts in enumerate(found):
        if facts is not None:
            target = incoming / f"series-{_hash(facts['series'])}"
            target.mkdir(exist_ok=True)
            os.replace(folder / f"{number:05d}.dcm", target / f"{_hash(facts['instance'])}.dcm")
            series.add(target)
    return series


def _hash(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()[:32]


def _settle(studio: Studio, series: Path) -> None:
    """Make an input of a series when nothing more comes."""
    waiting = studio.arrivals.pop(series, None)
    if waiting is not None:
        waiting.cancel()
    studio.arrivals[series] = studio.background(_after_a_while(studio, series))


async def _after_a_while(studio: Studio, series: Path) -> None:
    await asyncio.sleep(QUIET_SECONDS)
    studio.arrivals.pop(series, None)
    folder = studio.store.inputs / new_id()
    folder.mkdir()
    await run_in_threadpool(os.replace, series, folder / "files")
    try:
        await studio.desk.run(read_upload, folder, "DICOM series", None, studio.settings.limits)
    except UserError as error:
        studio.engine.counts["series_refused"] += 1
        studio.log(f"a series that was sent cannot be used: {error}")
        await run_in_threadpool(remove, folder)


def resume_arrivals(studio: Studio) -> None:
    """Take up series that had arrived before the server ended."""
    for folder in (studio.store.root / "incoming").glob("*"):
        if folder.name.startswith("series-"):
            _settle(studio, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _answer(found: list[Json | None]) -> dict[str, Any]:
    """The response in DICOM JSON: instances that were stored, and those that were not."""
    stored = [_reference(facts) for facts in found if facts is not None]
    failed = [{"00081197": {"vr": "US", "Value": [NOT_A_DICOM_OBJECT]}} for facts in found if facts is None]
    answer: dict[str, Any] = {"00081199": {"vr": "SQ", "Value": stored}} if stored else {}
    return answer | ({"00081198": {"vr": "SQ", "Value": failed}} if failed else {})


def _reference(facts: Json) -> Json:
    return {
        "00081150": {"vr": "UI", "Value": [facts["class"]]},
        "00081155": {"vr": "UI", "Value": [facts["instance"]]},
    }
