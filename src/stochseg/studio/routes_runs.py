"""Routes of finished runs and predictions, and of growth between two jobs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from stochseg.errors import UserError
from stochseg.studio.errors import Refusal, not_found
from stochseg.studio.launch import compare_jobs, list_cases, list_runs, open_case
from stochseg.studio.routes_jobs import describe, finished_folder
from stochseg.studio.schemas import GrowthRequest, JobAnswer, Name
from stochseg.studio.state import Studio, studio_of
from stochseg.studio.store import Json, new_id, remove

router = APIRouter(tags=["runs"])
Shared = Annotated[Studio, Depends(studio_of)]


class RunAnswer(BaseModel):
    """A run or a folder of predictions."""

    id: str
    name: str
    kind: str
    model: str
    data: str
    metrics: list[dict[str, Any]]
    cases: int


class CaseAnswer(BaseModel):
    """An image of a run or of predictions. scores: by the key of the metric."""

    id: str
    name: str
    scores: dict[str, float]


@router.get("/runs")
async def get_runs(studio: Shared) -> list[RunAnswer]:
    """Runs and predictions in the folders that the server was started with."""
    return [RunAnswer(**facts) for facts in await _find(studio)]


@router.get("/runs/{name}/cases")
async def get_cases(name: Name, studio: Shared, sort: Annotated[str, Query(max_length=40)] = "ged") -> list[CaseAnswer]:
    """Images of a run with their scores, the worst first."""
    path = await _path(studio, name)
    return [CaseAnswer(**case) for case in await studio.desk.run(list_cases, path, sort)]


@router.post("/runs/{name}/cases/{case}/open", status_code=201)
async def open_one(name: Name, case: int, studio: Shared) -> JobAnswer:
    """Open an image of a run as a job: predictions as they are, images of an evaluation drawn again."""
    path = await _path(studio, name)
    cases = await studio.desk.run(list_cases, path, "")
    if not 0 <= case < len(cases):
        raise not_found("case", str(case))
    input, job = studio.store.inputs / new_id(), studio.store.jobs / new_id()
    for folder in (input, job):
        folder.mkdir()
    try:
        found = await studio.desk.run(open_case, path, case, input, job, studio.settings.limits)
    except BaseException as error:
        for folder in (input, job):
            await run_in_threadpool(remove, folder)
        if isinstance(error, UserError) and not isinstance(error, Refusal):
            raise Refusal(409, str(error)) from None
        raise
    if not found["done"]:
        await run_in_threadpool(remove, job)
        return describe(studio.engine.submit(_request(found)), studio)
    return describe(studio.engine.adopt(job.name, _request(found)), studio)


@router.post("/growth")
async def compare(wanted: GrowthRequest, studio: Shared) -> dict[str, Any]:
    """The change of a measurement from one finished job to another, over all pairs of samples."""
    folders = [finished_folder(studio.job(name)) for name in (wanted.before, wanted.after)]
    return await studio.desk.run(compare_jobs, folders[0], folders[1], wanted.measure, wanted.days)


async def _find(studio: Studio) -> list[Json]:
    """The runs, read again after a few seconds."""
    when, found = studio.runs
    if time.monotonic() - when > 5:
        found = await studio.desk.run(list_runs, studio.settings.runs)
        studio.runs = (time.monotonic(), found)
    return found


async def _path(studio: Studio, name: str) -> Path:
    for facts in await _find(studio):
        if facts["id"] == name:
            return Path(facts["path"])
    raise not_found("run", name)


def _request(found: Json) -> Json:
    facts = found["facts"]
    return {
        "input": facts["id"],
        "model": found["model"],
        "model_path": found["path"],
        "options": found["options"],
        "points": [],
        "shape": [*facts["shape"], facts["channels"]],
        "keep": False,
        "parameters": {"samples": found["options"]["n"], "rater": found["options"]["rater"]},
    }
