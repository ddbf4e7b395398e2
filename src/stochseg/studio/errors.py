"""Refusals of the API: an HTTP status and what the user can do about it."""

from __future__ import annotations

from typing import Any

from stochseg.errors import UserError


class Refusal(UserError):
    """A request that the server refuses.

    Args:
        status: HTTP status, 4xx or 503.
        message: what is wrong.
        expected: what would be right.
        got: what came.
        remedy: what to do.
        retry_after: seconds after which a new attempt is worth it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        expected: object = None,
        got: object = None,
        remedy: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.expected, self.got, self.remedy = expected, got, remedy

    def content(self) -> dict[str, Any]:
        """The error as JSON values."""
        return error_content(str(self), expected=self.expected, got=self.got, remedy=self.remedy)


def error_content(message: str, **facts: object) -> dict[str, Any]:
    """The body of an error; facts: expected, got, remedy."""
    shown = {key: None if value is None else str(value)[:300] for key, value in facts.items()}
    return {"error": {"message": message, "expected": None, "got": None, "remedy": None, **shown}}


def not_found(kind: str, name: str) -> Refusal:
    """The refusal of an unknown job, input, file and the like."""
    return Refusal(404, f"no {kind} {name[:80]!r}; it may have expired", got=name, remedy=f"choose another {kind}")
