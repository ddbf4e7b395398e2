"""Registry of HTML views of results for notebooks.

Types such as `Samples` are defined in layers below the plotting package, so `stochseg/__init__.py` registers their
views here by class name.
"""

from __future__ import annotations

from collections.abc import Callable

View = Callable[[object], str]
VIEWS: dict[str, View] = {}


def html(value: object) -> str | None:
    """Return the registered HTML view of a value, or None, for which notebooks show the repr."""
    view = VIEWS.get(type(value).__name__)
    return None if view is None else view(value)
