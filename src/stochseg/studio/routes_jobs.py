"""Routes of jobs: submit, follow, read results."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import ValidationError

from stochseg.studio.errors import Refusal, not_found
from stochseg.studio.launch import write_report
from stochseg.studio.requests import check_job, require_model
from stochseg.studio.routes_inputs import MAX_JSON, receive_form, send_file, send_map
from stochseg.studio.schemas import ErrorFacts, JobAnswer, JobRequest, Name
from stochseg.studio.state import Studio, studio_of
from stochseg.studio.store import PAGE, RESULT, JobRecord, Json, read_events

router = APIRouter(tags=["jobs"])
Shared = Annotated[Studio, Depends(studio_of)]
KEEP_ALIVE = 15.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it."""
REPORT = "report.html"
TITLES = {
    REPORT: "Report, HTML",
    "lesions.dcm": "DICOM SEG, one segment per lesion",
    "fused.dcm": "DICOM SEG, most probable class",
    "lesions.nii.gz": "Lesions, NIfTI",
    "foreground.nii.gz": "Probability of a lesion, NIfTI",
    "overlay.png": "Picture, PNG",
    "fused.png": "Most probable class, PNG",
    "fused.nii.gz": "Most probable class, NIfTI",
    "samples.tif": "All samples, TIFF",
    "samples.nii.gz": "All samples, NIfTI",
    "mean.tif": "Probabilities, TIFF",
    "mean.nii.gz": "Probabilities, NIfTI",
    "entropy.tif": "Entropy, TIFF",
    "entropy.nii.gz": "Entropy, NIfTI",
    "result.json": "Sizes and settings, JSON",
}
"""Files of a result, in the order in which they are listed."""
SUBMIT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": JobRequest.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "model"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "model": {"type": "string"},
                        "samples": {"type": "integer"},
                        "points": {"type": "string", "description": "x,y,z"},
                    },
                }
            },
        },
    }
}


def describe(record: JobRecord, studio: Studio) -> JobAnswer:
    """A job as a client sees it."""
    return JobAnswer(
        id=record.id,
        state=record.state,
        position=studio.engine.position(record),
        created=record.created,
        finished=record.finished,
        input=record.request["input"],
        model=record.request["model"],
        parameters=record.request["parameters"],
        error=None if record.error is None else ErrorFacts(**record.error),
    )


@router.post("/jobs", status_code=201, openapi_extra=SUBMIT)
async def submit_job(request: Request, studio: Shared) -> JobAnswer:
    """Draw samples of an input; as multipart/form-data, of a file in the same request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        wanted = await _receive_with_file(request, studio)
    elif kind == "application/json":
        wanted = _parse(await request.body())
    else:
        raise Refusal(415, "unknown content type", expected="application/json or multipart/form-data", got=kind)
    model = require_model(await studio.engine.known_models(), wanted.model)
    _, facts = studio.input(wanted.input)
    return describe(studio.engine.submit(check_job(wanted, model, facts, studio.settings.limits)), studio)


@router.get("/jobs")
async def list_jobs(studio: Shared) -> list[JobAnswer]:
    """All jobs, the newest first."""
    records = sorted(studio.engine.jobs.values(), key=lambda record: -record.created)
    return [describe(record, studio) for record in records]


@router.get("/jobs/{name}")
async def get_job(name: Name, studio: Shared) -> JobAnswer:
    """One job."""
    return describe(studio.job(name), studio)


@router.post("/jobs/{name}/cancel")
async def cancel_job(name: Name, studio: Shared) -> JobAnswer:
    """Stop a job; a finished one stays as it is."""
    record = studio.job(name)
    studio.engine.cancel(record, "cancelled by the user")
    return describe(record, studio)


@router.delete("/jobs/{name}", status_code=204)
async def delete_job(name: Name, studio: Shared) -> None:
    """Stop and remove a job with its results."""
    studio.engine.delete(studio.job(name))


@router.get("/jobs/{name}/events", response_class=StreamingResponse)
async def get_events(
    name: Name,
    studio: Shared,
    after: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Events of a job as server-sent events; those behind the last one that the client has seen."""
    record = studio.job(name)
    seen = int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 10 else 0
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(record, studio, after or seen), media_type="text/event-stream", headers=headers)


@router.get("/jobs/{name}/result")
async def get_result(name: Name, studio: Shared) -> dict[str, Any]:
    """Readings, measurements and scores of a finished job."""
    folder = finished_folder(studio.job(name))
    content: Json = json.loads((folder / PAGE / "result.json").read_bytes())
    return {**content, "job": name, "files": _list_files(name, folder)}


@router.get("/jobs/{name}/contours", response_class=Response)
async def get_contours(name: Name, studio: Shared) -> FileResponse:
    """Outlines of all samples, slice by slice."""
    return send_file(finished_folder(studio.job(name)) / PAGE / "contours.json", "application/json")


@router.get("/jobs/{name}/samples", response_class=Response)
async def get_samples(name: Name, studio: Shared) -> FileResponse:
    """All samples of a volume as one 4-D gzip NIfTI."""
    return send_file(finished_folder(studio.job(name)) / PAGE / "samples.nii.gz", "application/gzip")


@router.get("/jobs/{name}/samples/{index}", response_class=Response)
async def get_sample(name: Name, index: int, studio: Shared) -> FileResponse:
    """The label map of one sample, also before the job is finished."""
    record = studio.job(name)
    return _map(record, f"sample-{index:05d}")


@router.get("/jobs/{name}/probability/{index}", response_class=Response)
async def get_probability(name: Name, index: int, studio: Shared) -> FileResponse:
    """The probability of one class; 255 is 1."""
    return _map(studio.job(name), f"probability-{index:05d}")


@router.get("/jobs/{name}/entropy", response_class=Response)
async def get_entropy(name: Name, studio: Shared) -> FileResponse:
    """The entropy; 255 is its maximum, the logarithm of the number of classes."""
    return _map(studio.job(name), "entropy")


@router.get("/jobs/{name}/files/{file}", response_class=Response)
async def get_file(name: Name, file: str, studio: Shared) -> FileResponse:
    """One of the files of a result, as an attachment."""
    record = studio.job(name)
    folder = finished_folder(record)
    if file == REPORT and not (folder / PAGE / REPORT).is_file():
        _, facts = studio.input(record.request["input"])
        flat = facts["spacing"] if facts["spatial_dims"] == 2 else None
        await studio.desk.run(
            write_report, folder / RESULT, folder / PAGE / REPORT, None if flat is None else tuple(flat)
        )
    path = _files(folder).get(file)
    if path is None or not path.is_file():
        raise not_found("file", file)
    kind = "application/dicom" if file.endswith(".dcm") else mimetypes.guess_type(file)[0]
    return FileResponse(path, media_type=kind or "application/octet-stream", filename=file)


# --- parts ----------------------------------------------------------------------------------------------


async def _stream(record: JobRecord, studio: Studio, seen: int) -> AsyncIterator[bytes]:
    """Events of a job until it is finished."""
    studio.engine.watch(record.id, 1)
    try:
        yield b"retry: 1000\n\n"
        while record.id in studio.engine.jobs:
            events = read_events(record.folder, seen)
            for event in events:
                seen = event["id"]
                data = event["data"]
                if event["type"] == "state":
                    data = {**describe(record, studio).model_dump(), "state": data["state"], "error": data.get("error")}
                yield f"id: {seen}\nevent: {event['type']}\ndata: {json.dumps(data)}\n\n".encode()
            if studio.engine.closing or (record.is_finished and seen >= record.events):
                return
            if not events:
                await studio.engine.wait(record.id, KEEP_ALIVE)
                if seen >= record.events:
                    yield b": still here\n\n"
    finally:
        studio.engine.watch(record.id, -1)


async def _receive_with_file(request: Request, studio: Studio) -> JobRequest:
    form = await request.form(max_files=studio.settings.limits.files, max_fields=20)
    try:
        known = JobRequest.model_fields
        fields: Json = {key: value for key, value in form.items() if key in known and isinstance(value, str)}
        if "points" in fields:
            fields["points"] = [fields["points"].split(",")]
        _validate({**fields, "input": "0" * 16})  # before the file is read
        facts = await receive_form(form, studio)
    finally:
        await form.close()
    return _validate({**fields, "input": facts["id"]})


def _parse(body: bytes) -> JobRequest:
    if len(body) > MAX_JSON:
        raise Refusal(413, "the request is too large", expected=f"at most {MAX_JSON} bytes of JSON")
    try:
        return JobRequest.model_validate_json(body)
    except ValidationError as error:
        raise _unfit(error) from None


def _validate(fields: Json) -> JobRequest:
    try:
        return JobRequest.model_validate(fields)
    except ValidationError as error:
        raise _unfit(error) from None


def _unfit(error: ValidationError) -> Refusal:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return Refusal(422, f"{where}: {first['msg']}", expected=first["msg"], got=first.get("input"))


def finished_folder(record: JobRecord) -> Path:
    """The folder of a job that is done."""
    if record.state != "done":
        raise Refusal(409, f"the job is {record.state}", expected="a job that is done", got=record.state)
    return record.folder


def _map(record: JobRecord, name: str) -> FileResponse:
    flat = len(record.request["shape"]) == 3  # height, width and channels
    return send_map(record.folder / PAGE, name, flat)


def _files(folder: Path) -> dict[str, Path]:
    """Files of a result by the names under which they are offered."""
    record = json.loads((folder / RESULT / "result.json").read_bytes())
    names = [*record["files"], "result.json"]
    found = {str(name).replace("/", "-"): folder / RESULT / str(name) for name in names}
    return {**found, REPORT: folder / PAGE / REPORT}


def _list_files(job: str, folder: Path) -> list[Json]:
    order = list(TITLES)

    def place(item: tuple[str, Path]) -> tuple[bool, int]:
        name, path = item
        return _is_part(name), order.index(path.name) if path.name in order else len(order)

    return [
        {
            "name": name,
            "title": _title(name, path),
            "bytes": path.stat().st_size if path.is_file() else None,
            "url": f"/api/v1/jobs/{job}/files/{name}",
        }
        for name, path in sorted(_files(folder).items(), key=place)
    ]


def _is_part(name: str) -> bool:
    """Whether a file shows the part of a scan around a lesion, not all of it."""
    return name.startswith("lesions-")


def _title(name: str, path: Path) -> str:
    what, _, kind = TITLES.get(path.name, path.name).rpartition(", ")
    return f"{what} around the lesion, {kind}" if _is_part(name) and what else TITLES.get(path.name, path.name)
