"""Settings of the server, and the limits that protect it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field

from stochseg.config import Config


class Limits(Config):
    """What one request, one job and the workspace may take."""

    upload_mb: float = Field(1000.0, gt=0, description="megabytes of one request")
    files: int = Field(4000, ge=1, description="files of one input: slices of a DICOM series, or entries of a zip")
    pixels: int = Field(300_000_000, ge=1, description="pixels or voxels of an input")
    samples: int = Field(256, ge=1, description="samples per job")
    evaluations: int = Field(1000, ge=1, description="network evaluations per sample")
    job_seconds: float = Field(900.0, gt=0, description="computing time of a job")
    read_seconds: float = Field(120.0, gt=0, description="time to read an upload or to write a page")
    queue: int = Field(64, ge=1, description="jobs that wait; more are refused with 429")
    abandoned_seconds: float = Field(
        600.0, gt=0, description="a job that nobody watches or asks about for so long is cancelled"
    )
    keep_days: float = Field(7.0, gt=0, description="finished jobs and their inputs are removed after so many days")
    keep_mb: float = Field(20_000.0, gt=0, description="size of the workspace; the oldest jobs make room")
    models: int = Field(3, ge=1, description="models that a worker keeps in memory")


class Settings(Config):
    """How the server runs."""

    workspace: Path = Field(description="folder of inputs, jobs and results")
    models: dict[str, str] = Field(description="path or bundled name of each model by its name in the API")
    devices: tuple[str, ...] = Field(("cpu",), min_length=1, description="one worker process each")
    runs: tuple[Path, ...] = Field((), description="folders with runs and predictions to show")
    hosts: tuple[str, ...] = Field((), description="names by which the server may be addressed, besides loopback")
    token: str | None = Field(None, description="required of every request; None on loopback only", repr=False)
    limits: Limits = Limits()

    def __str__(self) -> str:
        return repr(self)


def default_workspace() -> Path:
    """The folder for the data of this user's studio."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return base / "stochseg" / "studio"
