"""Optional packages in tests."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import pytest

from stochseg.extras import require


def import_or_skip(module: str) -> ModuleType:
    """Import a package of the extra `zoo` as the library does, or skip if it is not installed."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)
    return require(module, "zoo", "a test")
