"""The one exception for a mistake that the user can mend."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """What was expected, what came, what to do. The command prints it and exits with code 2."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error of every registry: an unknown name is answered with the known ones."""
    return UserError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
