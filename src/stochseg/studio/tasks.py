"""What the server tells a worker, and the other way round; light, because the server imports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Task:
    """A job for a worker.

    folder: of the job; input: folder of its input; model: its name; model_path: where it is; options: of
    `PredictOptions`; point: (x, y, z) of a lesion in the frame of the page, or None for the whole input; shape: of the
    input, with its channels.
    """

    id: str
    folder: str
    input: str
    model: str
    model_path: str
    options: dict[str, Any]
    point: Point | None
    shape: tuple[int, ...]

    def joins(self, other: Task) -> bool:
        """Whether both can be drawn in one call: the same model and options, and pictures of one size."""
        alike = (self.model, self.options, self.shape) == (other.model, other.options, other.shape)
        return alike and self.point is None and len(self.shape) == 3


@dataclass(frozen=True)
class Message:
    """Something that a worker tells the server.

    kind: ready (data: the models), progress, sample, done, failed, cancelled, or idle; job: its id, "" if it is about
    the worker.
    """

    kind: str
    job: str = ""
    data: dict[str, Any] = field(default_factory=dict)
