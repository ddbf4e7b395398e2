"""HTML views of results for notebooks.

Types such as `Samples` are defined in layers below the plotting package, so their views are imported by name when
something is shown.
"""

from __future__ import annotations

from importlib import import_module


def html(value: object) -> str | None:
    """Return the view of a value, such as `samples_html` for `Samples`, or None, for which notebooks show the repr."""
    view = getattr(import_module("stochseg.plotting.views"), f"{type(value).__name__.lower()}_html", None)
    return None if view is None else str(view(value))
