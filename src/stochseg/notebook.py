"""How results show themselves in notebooks.

Values such as `Samples` live far below the package that draws them. `stochseg` itself, which knows both, registers the
views here by name.
"""

from __future__ import annotations

from collections.abc import Callable

View = Callable[[object], str]
VIEWS: dict[str, View] = {}


def html(value: object) -> str | None:
    """The registered HTML view of a value, or None: notebooks then show its repr."""
    view = VIEWS.get(type(value).__name__)
    return None if view is None else view(value)
