"""The exception for mistakes that a user can fix, checks of numbers, and the lookup of names in registries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TypeVar

V = TypeVar("V")


class UserError(ValueError):
    """A mistake of the user: what was expected, what came, what to do. The command prints it and exits with code 2."""


class NotFinite(UserError):
    """A loss, a gradient or the output of a network is NaN or infinite."""


class CutLabelsWarning(UserWarning):
    """Foreground reaches the border of the part of an image that a model labels, and may be cut off there."""


def is_number(value: object) -> bool:
    """Whether an argument is a real number, of Python or numpy."""
    return isinstance(value, Real)


def is_integer(value: object) -> bool:
    """Whether an argument is an integer, of Python or numpy."""
    return isinstance(value, Integral)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Build the error for an unknown name of any registry; it lists the known ones."""
    return UserError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")


def hyphenated(name: str) -> str:
    """Spell a name as users type it: one-step-kernel for one_step_kernel, as older files have it."""
    return name.replace("_", "-")


def lookup(kind: str, registry: Mapping[str, V], name: object) -> V:
    """Look up a name in a registry; underscores also stand for hyphens.

    Args:
        kind: noun for the error message, such as "sampler".
        registry: entries by name.
        name: as the user or a saved config spells it.

    Raises:
        UserError: if the name is unknown.

    Example:
        >>> lookup("shape", {"long-oval": 7}, "long_oval")
        7
    """
    for spelling in (name, hyphenated(name)) if isinstance(name, str) else ():
        if spelling in registry:
            return registry[spelling]
    raise unknown_name(kind, name, registry)
