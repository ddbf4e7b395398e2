"""The HTTP API and the page. It sends files that workers wrote; nothing is computed here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.studio import dicomweb, routes_inputs, routes_jobs, routes_runs
from stochseg.studio.desk import Desk
from stochseg.studio.engine import Engine
from stochseg.studio.errors import Refusal, error_content
from stochseg.studio.launch import warm_up
from stochseg.studio.reference import STYLE, api_page
from stochseg.studio.schemas import ErrorAnswer
from stochseg.studio.settings import Settings
from stochseg.studio.state import Studio
from stochseg.studio.store import Store

STATIC = Path(__file__).parent / "static"
ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorAnswer} for status in (400, 404, 409, 413, 422, 429)}


def create_app(settings: Settings) -> FastAPI:
    """The application, without its gate; see `stochseg.studio.serving`."""
    store = Store(settings.workspace)
    studio = Studio(settings, store, Engine(settings, store))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        studio.desk = Desk(2, settings.limits.read_seconds)
        await studio.engine.start()
        dicomweb.resume_arrivals(studio)
        warming = studio.background(studio.desk.run(warm_up))
        yield
        warming.cancel()
        await studio.engine.close()
        studio.desk.close()

    app = FastAPI(
        title="stochseg studio",
        version=__version__,
        description="Draw the plausible segmentations of images, volumes and lesions.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
    )
    app.state.studio = studio
    _handle_errors(app)
    for router in (routes_inputs.router, routes_jobs.router, routes_runs.router):
        app.include_router(router, prefix="/api/v1")
    app.include_router(dicomweb.router, prefix="/dicom-web")
    _add_pages(app, studio)
    return app


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return JSONResponse(error.content(), error.status, headers)

    @app.exception_handler(UserError)
    async def explain(request: Request, error: UserError) -> Response:
        return JSONResponse(error_content(str(error)), 422)

    @app.exception_handler(HTTPException)
    async def answer(request: Request, error: HTTPException) -> Response:
        return JSONResponse(error_content(str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def unfit(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}"
        return JSONResponse(error_content(message, expected=first["msg"], got=first.get("input")), 422)


def _add_pages(app: FastAPI, studio: Studio) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/healthz", tags=["operation"])
    async def health() -> dict[str, str]:
        """Whether the server is alive."""
        return {"status": "closing" if studio.engine.closing else "ok"}

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    async def metrics() -> str:
        """Counters in the text format of Prometheus."""
        return studio.metrics()

    @app.get("/docs", include_in_schema=False)
    async def reference() -> Response:
        return HTMLResponse(api_page(app.openapi()))

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
