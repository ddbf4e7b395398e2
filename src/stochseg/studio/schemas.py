"""Requests and answers of the API, for checks and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stochseg.limits import MAX_SEED
from stochseg.studio.catalog import MAX_NUMBER
from stochseg.studio.store import ID

Name = Annotated[str, Field(pattern=f"^{ID}$", description="id that the server gave")]
Coordinate = Annotated[float, Field(ge=0, le=2**20, allow_inf_nan=False)]


class Request(BaseModel):
    """Base class of requests: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ExampleRequest(Request):
    """An example to make."""

    example: str = Field(max_length=64, description="name of an example")
    number: int = Field(0, ge=0, le=MAX_NUMBER, description="which of its images")


class JobRequest(Request):
    """Samples to draw."""

    input: Name
    model: str = Field(max_length=200, description="name of a model")
    samples: int = Field(16, ge=1, le=10**6)
    evaluations: int | None = Field(None, ge=1, le=10**6, description="per sample; null: the model's default")
    seed: int = Field(0, ge=0, le=MAX_SEED, description="same seed, same samples")
    noise: Literal["independent", "latin"] | None = Field(None, description="null: the model's default")
    points: list[tuple[Coordinate, Coordinate, Coordinate]] | None = Field(
        None, max_length=1, description="one point (x, y, z) in a lesion of a volume: column, row and slice, from 0"
    )
    slices: Literal["shared", "independent"] | None = Field(
        None, description="noise of the slices of a volume, for models of images"
    )
    rater: str | None = Field(
        None, max_length=200, description="draw as this one of the model's `rater_names` would; null: as any of them"
    )
    allow_unusual_input: bool = Field(False, description="segment images unlike those of the training")
    keep: bool = Field(False, description="go on also if nobody watches")


class GrowthRequest(Request):
    """Two finished jobs to compare."""

    before: Name
    after: Name
    measure: str = Field(max_length=100, description="key of a measure that both have")
    days: float | None = Field(None, gt=0, le=10**6, description="between the scans, for the doubling time")


class ErrorFacts(BaseModel):
    """What was wrong and what to do."""

    message: str
    expected: str | None = None
    got: str | None = None
    remedy: str | None = None


class ErrorAnswer(BaseModel):
    """The body of every answer with a status of 4xx or 5xx."""

    error: ErrorFacts


class Range(BaseModel):
    """Two ends."""

    low: float
    high: float


class InputAnswer(BaseModel):
    """An input."""

    id: str
    name: str
    created: float
    spatial_dims: int
    shape: list[int]
    channels: int
    spacing: list[float] | None
    window: Range
    range: Range
    units: str
    rater_names: list[str]
    notes: list[str]
    is_dicom: bool
    image_url: str


class JobAnswer(BaseModel):
    """A job."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int | None
    created: float
    finished: float | None
    input: str
    model: str
    parameters: dict[str, Any]
    error: ErrorFacts | None


class ExampleAnswer(BaseModel):
    """An example."""

    name: str
    title: str
    spatial_dims: int
    model: str
    later_scan_of: str | None
    channels: int


class ModelAnswer(BaseModel):
    """A model."""

    name: str
    title: str
    spatial_dims: int
    image_channels: int
    class_names: list[str]
    palette: list[str]
    takes_points: bool
    takes_evaluations: bool
    rater_names: list[str]
    units: str
    license_note: str | None
    limits: dict[str, int]
    defaults: dict[str, Any]
