"""Routes of models, examples and inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from stochseg.errors import UserError
from stochseg.studio.catalog import EXAMPLES
from stochseg.studio.errors import Refusal, not_found
from stochseg.studio.launch import make_example, read_upload
from stochseg.studio.schemas import ExampleAnswer, ExampleRequest, InputAnswer, ModelAnswer, Name
from stochseg.studio.state import Studio, studio_of
from stochseg.studio.store import SHOWN, Json, new_id, remove, safe_name

router = APIRouter(tags=["inputs"])
Shared = Annotated[Studio, Depends(studio_of)]
MAX_FIELDS = 20
MAX_JSON = 10_000
"""Bytes of a JSON body."""
UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "raters": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "name": {"type": "string"},
                        "spacing": {"type": "string", "description": "mm per pixel: 0.7, or row,column 0.7,0.5"},
                    },
                }
            },
            "application/json": {"schema": ExampleRequest.model_json_schema()},
        },
    }
}


@router.get("/models")
async def list_models(studio: Shared) -> list[ModelAnswer]:
    """Models that jobs can use."""
    return [ModelAnswer(**facts) for facts in (await studio.engine.known_models()).values()]


@router.get("/examples")
async def list_examples(studio: Shared) -> list[ExampleAnswer]:
    """Examples that the server can make."""
    return [ExampleAnswer(name=name, **example._asdict()) for name, example in EXAMPLES.items()]


@router.post("/inputs", status_code=201, openapi_extra=UPLOAD)
async def create_input(request: Request, studio: Shared) -> InputAnswer:
    """Upload an image, a volume, a zip, or the files of a DICOM series; or make an example."""
    return answer(await receive_input(request, studio))


@router.get("/inputs")
async def list_inputs(studio: Shared) -> list[InputAnswer]:
    """All inputs, the newest first."""
    return [answer(facts) for facts in await run_in_threadpool(studio.store.list_inputs)]


@router.get("/inputs/{name}")
async def get_input(name: Name, studio: Shared) -> InputAnswer:
    """One input."""
    return answer(studio.input(name)[1])


@router.delete("/inputs/{name}", status_code=204)
async def delete_input(name: Name, studio: Shared) -> None:
    """Remove an input that no job uses."""
    folder, _ = studio.input(name)
    if name in studio.store.used_by(iter(studio.engine.jobs.values())):
        raise Refusal(409, "a job uses this input", remedy="delete its jobs first")
    await run_in_threadpool(remove, folder)


@router.get("/inputs/{name}/image", response_class=Response)
async def get_image(name: Name, studio: Shared) -> FileResponse:
    """The image as PNG, or the volume as gzip NIfTI in the frame of the page."""
    folder, facts = studio.input(name)
    return send_map(folder / SHOWN, "image", facts["spatial_dims"] == 2)


@router.get("/inputs/{name}/raters/contours", response_class=Response)
async def get_rater_contours(name: Name, studio: Shared) -> FileResponse:
    """Outlines of all raters, as those of samples."""
    folder, facts = studio.input(name)
    if not facts["rater_names"]:
        raise not_found("rater of input", name)
    return send_file(folder / SHOWN / "contours.json", "application/json")


@router.get("/inputs/{name}/raters/{index}", response_class=Response)
async def get_rater(name: Name, index: int, studio: Shared) -> FileResponse:
    """The label map of one rater, as PNG or gzip NIfTI."""
    folder, facts = studio.input(name)
    if not 0 <= index < len(facts["rater_names"]):
        raise not_found("rater", str(index))
    return send_map(folder / SHOWN, f"rater-{index:05d}", facts["spatial_dims"] == 2)


# --- receiving ------------------------------------------------------------------------------------------


async def receive_input(request: Request, studio: Studio) -> Json:
    """Make an input of the body of a request; returns its facts."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return await _receive_example(request, studio)
    if kind != "multipart/form-data":
        raise Refusal(415, "unknown content type", expected="multipart/form-data or application/json", got=kind)
    form = await request.form(max_files=studio.settings.limits.files, max_fields=MAX_FIELDS)
    try:
        return await receive_form(form, studio)
    finally:
        await form.close()


async def _receive_example(request: Request, studio: Studio) -> Json:
    body = await request.body()
    try:
        wanted = ExampleRequest.model_validate_json(body[: MAX_JSON + 1])
    except ValidationError as error:
        raise Refusal(422, f"example: {error.errors()[0]['msg']}", expected='{"example": NAME}') from None
    if wanted.example not in EXAMPLES:
        raise Refusal(422, f"unknown example {wanted.example!r}", expected=", ".join(EXAMPLES), got=wanted.example)
    folder = _new_folder(studio)
    return await _read(studio, folder, make_example, wanted.example, wanted.number, folder, studio.settings.limits)


async def receive_form(form: FormData, studio: Studio) -> Json:
    """Store the files of a form and read them; returns the facts of the new input."""
    files = [part for key in ("files", "file") for part in form.getlist(key)]
    raters = form.getlist("raters")
    for part in (*files, *raters):
        if not isinstance(part, UploadFile):
            raise Refusal(422, "files: expected files, got text", remedy="send them with a file name")
    if not files:
        raise Refusal(422, "files: expected at least one file, got none")
    folder = _new_folder(studio)
    names = [part.filename or "unnamed" for part in files if isinstance(part, UploadFile)]
    try:
        spacing = _spacing(form.get("spacing"))
        await run_in_threadpool(_store_files, folder / "files", files)
        if raters:
            await run_in_threadpool(_store_files, folder / "raters", raters)
            given = [part.filename or "rater" for part in raters if isinstance(part, UploadFile)]
            (folder / "rater_names.json").write_text(json.dumps([_shown(name) for name in given]), encoding="utf-8")
    except BaseException:
        remove(folder)
        raise
    title = form.get("name")
    shown = _shown(title) if isinstance(title, str) and title else _title(names)
    return await _read(studio, folder, read_upload, folder, shown, spacing, studio.settings.limits)


def _new_folder(studio: Studio) -> Path:
    folder = studio.store.inputs / new_id()
    folder.mkdir()
    return folder


async def _read(studio: Studio, folder: Path, function: Any, *args: Any) -> Json:
    """Read an input at the desk; nothing of it stays if that fails."""
    try:
        facts: Json = await studio.desk.run(function, *args)
    except BaseException as error:
        await run_in_threadpool(remove, folder)
        if isinstance(error, UserError) and not isinstance(error, Refusal):
            raise Refusal(422, str(error).replace(f"{folder}/files/", "")) from None
        raise
    return facts


def _store_files(folder: Path, parts: list[Any]) -> None:
    folder.mkdir()
    for number, part in enumerate(parts):
        with (folder / safe_name(number, part.filename or "")).open("wb") as target:
            while content := part.file.read(2**20):
                target.write(content)


def _shown(name: str) -> str:
    """The name of a file as text to show: without folders and without characters that are not printed."""
    base = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(c for c in base if c.isprintable())[:100] or "unnamed"


def _title(names: list[str]) -> str:
    first = names[0].replace("\\", "/")
    if len(names) == 1 or "/" not in first:
        return _shown(first) if len(names) == 1 else f"{_shown(first)} and {len(names) - 1} more"
    return _shown(first.rpartition("/")[0])


def _spacing(text: object) -> list[float] | None:
    if not text:
        return None
    try:
        values = [float(part) for part in str(text)[:100].split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 < value < 1e4 for value in values):
        raise Refusal(422, "spacing: expected millimeters per pixel, 0.7 or row,column 0.7,0.5", got=text)
    return [values[0], values[-1]]


# --- answers --------------------------------------------------------------------------------------------


def answer(facts: Json) -> InputAnswer:
    """An input as a client sees it."""
    shown = {key: value for key, value in facts.items() if key in InputAnswer.model_fields}
    return InputAnswer(**shown, image_url=f"/api/v1/inputs/{facts['id']}/image")


def send_map(folder: Path, name: str, flat: bool) -> FileResponse:
    """Send a map that a worker wrote; the browser may keep it, because it never changes."""
    suffix, kind = ("png", "image/png") if flat else ("nii.gz", "application/gzip")
    return send_file(folder / f"{name}.{suffix}", kind)


def send_file(file: Path, kind: str) -> FileResponse:
    """Send a file of the workspace."""
    if not file.is_file():
        raise not_found("map", file.stem)
    return FileResponse(file, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})
